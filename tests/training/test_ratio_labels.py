"""SPRINTER's rows against one forward for each, and against the laws they are drawn from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from hf_lossy_assist.models.reading import remembered
from hf_lossy_assist.tasks import Example
from hf_lossy_assist.training.choice import GumbelMax
from hf_lossy_assist.training.ratio_labels import KINDS, Continuation, RatioMiner, write_all
from hf_lossy_assist.training.writing import Prompt, ResponseLimits
from tests.tiny_models import SOME_ARCHITECTURES, constant
from tests.training.parts import Parts, states_of, tiny_parts

CHOICE = GumbelMax(seed=0, temperature=0.8)


def write(models, continuations, limits):
    prompts = [one.prompt for one in continuations]
    known = {
        role: dict(zip(prompts, remembered(model, [prompt[:-1] for prompt in prompts]), strict=True))
        for role, model in models.items()
    }
    return write_all(models, continuations, limits, CHOICE, known)


def miner(parts: Parts, slots: int = 3, rows: int = 4, choice: GumbelMax = CHOICE) -> RatioMiner:
    return RatioMiner(parts.target, parts.draft, parts.limits(), choice, slots, rows)


def law(model, text, temperature: float = CHOICE.temperature) -> torch.Tensor:
    with torch.no_grad():
        return (model(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0, -1] / temperature).softmax(-1)


def spied(monkeypatch) -> list:
    """Collect the continuations that a miner has written."""
    written = []

    def write(models, continuations, *rest):
        texts = write_all(models, continuations, *rest)
        written.extend(zip(continuations, texts, strict=True))
        return texts

    monkeypatch.setattr("hf_lossy_assist.training.ratio_labels.write_all", write)
    return written


@pytest.mark.parametrize("architecture", SOME_ARCHITECTURES)
def test_rows_are_those_of_one_text_each(architecture, monkeypatch):
    written = spied(monkeypatch)
    parts = tiny_parts(architecture, seed=3)
    parts.target.generation_config.eos_token_id = None
    (prompt,) = parts.prompts(1)
    ((outcome, rows),) = miner(parts).outcomes([prompt])
    assert outcome.status == "mined"
    kinds = [[*KINDS][kind] for kind in rows["kind"]]
    assert Counter(kinds) == dict.fromkeys(KINDS, 4)
    texts = {"prompt": ()} | {"+".join(continuation.authors): text for continuation, text in written}
    texts["interleaved"] = texts.pop("draft+target")
    for i, kind in enumerate(kinds):
        assert (rows["index"][i] == 0) == (kind == "prompt")
        prefix = (*prompt.tokens, *texts[kind][: rows["index"][i]])
        token = int(rows["token"][i])
        assert rows["p"][i] == pytest.approx(law(parts.target, prefix)[token].item(), rel=1e-3, abs=1e-6)
        assert rows["q"][i] == pytest.approx(law(parts.draft, prefix)[token].item(), rel=1e-3, abs=1e-6)
        for name, text in (("previous", prefix), ("token_state", (*prefix, token))):
            expected = states_of(parts.draft, text)[-1].numpy()
            np.testing.assert_allclose(rows[name][i], expected, atol=3e-5, rtol=1e-3)


def test_a_prompt_gives_the_same_rows_in_every_batch():
    parts = tiny_parts(seed=3)
    prompts = parts.prompts(5)

    def rows(slots, choice=CHOICE):
        return {
            one.id: (one.status, [list(tokens.get(name, ())) for name in ("kind", "index", "token")])
            for one, tokens in miner(parts, slots, choice=choice).outcomes(prompts)
        }

    assert rows(1) == rows(3) == rows(16)
    assert rows(3) != rows(3, GumbelMax(seed=1, temperature=0.8))


P = [0.05, 0.45, 0.05, 0.15, 0.2, 0.1]
Q = [0.1, 0.2, 0.05, 0.35, 0.1, 0.2]


def constants() -> Parts:
    target, draft = constant(P, seed=0), constant(Q, seed=1)
    return Parts(target, draft)


def test_tokens_are_the_drafts_and_continuations_their_authors(monkeypatch):
    """On models of constant laws: rows follow q, a continuation follows the law of who writes it (chi-square)."""
    written = spied(monkeypatch)
    limits = ResponseLimits(frozenset(), 40)
    parts = constants()
    rows = RatioMiner(parts.target, parts.draft, limits, GumbelMax(0), slots=20, rows_per_kind=10)
    prompts = [Prompt(i, Example("", ""), (i % 6, i % 5)) for i in range(60)]
    outcomes = [tokens for _, tokens in rows.outcomes(prompts)]
    for kind in range(len(KINDS)):
        tokens = np.concatenate([one["token"][one["kind"] == kind] for one in outcomes])
        assert len(tokens) == 600
        assert stats.chisquare(np.bincount(tokens, minlength=6), 600 * np.array(Q)).pvalue > 1e-4
    p = np.concatenate([one["p"] for one in outcomes])
    tokens = np.concatenate([one["token"] for one in outcomes])
    np.testing.assert_allclose(p, np.array(P)[tokens], rtol=1e-4)
    laws = {("draft",): Q, ("target",): P, ("draft", "target"): (np.array(P) + np.array(Q)) / 2}
    for authors, expected in laws.items():
        tokens = np.array(
            [token for continuation, text in written if continuation.authors == authors for token in text]
        )
        assert len(tokens) == 60 * 40
        assert stats.chisquare(np.bincount(tokens, minlength=6), 2400 * np.array(expected)).pvalue > 1e-4


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_mixed_texts_are_written_as_if_alone(architecture):
    parts = tiny_parts(architecture, seed=3)
    models = {"target": parts.target, "draft": parts.draft}
    prompts = parts.prompts(3)
    continuations = [
        Continuation(prompt.tokens, authors, i)
        for prompt in prompts
        for i, authors in enumerate(KINDS.values())
        if authors
    ]
    texts = write(models, continuations, parts.limits())
    for continuation, text in zip(continuations, texts, strict=True):
        alone: list[int] = []
        context = CHOICE.context((continuation.salt, *continuation.prompt))
        turns = continuation.turns(parts.max_new_tokens)
        while not parts.limits().over(alone):
            with torch.no_grad():
                ids = torch.tensor([[*continuation.prompt, *alone]])
                logits = models[turns[len(alone)]](input_ids=ids, use_cache=False).logits[:, -1]
            alone += CHOICE.choose(logits, [context])
            context = CHOICE.extend(context, alone[-1])
        assert text == tuple(alone)


def test_a_text_that_ends_at_once_gives_no_rows():
    parts = constants()
    rows = RatioMiner(parts.target, parts.draft, ResponseLimits(frozenset(range(6)), 10), CHOICE, 2, 3)
    ((outcome, _),) = rows.outcomes([Prompt(0, Example("", ""), (1, 2))])
    assert (outcome.status, outcome.error) == ("skipped", "a continuation is empty")


def test_short_continuations_are_used_more_than_once():
    parts = constants()
    rows = RatioMiner(parts.target, parts.draft, ResponseLimits(frozenset(), 3), CHOICE, 2, 8)
    ((_, tokens),) = rows.outcomes([Prompt(0, Example("", ""), (1, 2))])
    assert Counter(tokens["kind"].tolist()) == dict.fromkeys(range(4), 8)
    assert set(tokens["index"][tokens["kind"] == [*KINDS].index("draft")].tolist()) <= {1, 2, 3}
