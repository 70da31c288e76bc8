"""Steps are drafted, scored and replaced as SpecReason does it; a naive implementation without caches is the oracle.

The chi-square test uses p > 1e-5 on 3,000 tokens: it catches an output law that is off by 0.05 in any token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist import LossyError, LossyVerification, pairs
from hf_lossy_assist.acceptors import Steps
from tests.acceptors.fixtures import P, Q, chi_square_p
from tests.families import family
from tests.tiny_models import LENGTHS, VOCAB, Characters, constant, noisy_copy, padded, prompt, tiny

TOKENS = 40
GREEDY = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "return_dict_in_generate": True}


@dataclass
class Naive:
    """SpecReason with models that read the whole text for every token, by `generate()` or one forward."""

    target: Any
    draft: Any
    settings: dict[str, Any]
    tokenizer: Any = field(default_factory=Characters)
    eos: tuple[int, ...] = ()
    scores: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def write(self, ids: list[int], count: int) -> list[int]:
        text = list(ids)
        while (room := count - (len(text) - len(ids))) and text[-1] not in self.eos:
            step = self.step(self.draft, text, room)
            self.scores.append(self.score(text + step))
            if self.scores[-1] >= self.settings["threshold"]:
                self.kept.append(len(step))
            else:
                step = self.step(self.target, text, room)
            text += step
        return text

    def step(self, model: Any, text: list[int], room: int) -> list[int]:
        longest = min(room, self.settings["longest"])
        given = torch.tensor([text])
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=longest, do_sample=False,
            eos_token_id=list(self.eos) or None,
        )[0, len(text) :].tolist()  # fmt: skip
        ends = (n for n in range(1, len(out) + 1) if self.settings["end"] in self.tokenizer.decode(out[:n]))
        return out[: next(ends, len(out))]

    @torch.no_grad()
    def score(self, text: list[int]) -> float:
        question = self.settings["question"]
        *asked, _ = self.tokenizer.encode(question + "0", add_special_tokens=False)
        digits = [self.tokenizer.encode(question + str(d), add_special_tokens=False)[-1] for d in range(10)]
        logits = self.target(input_ids=torch.tensor([text + asked]), use_cache=False).logits[0, -1, digits]
        weights = np.exp(logits.double().numpy() - logits.max().item())
        return float(weights @ np.arange(10) / weights.sum())


def steps(target, draft, config, **more):
    kwargs = {"input_ids": prompt(), "assistant_model": draft, "tokenizer": Characters()} | GREEDY | more
    return target.generate(**kwargs, lossy_mode="steps", lossy_config=config)


def pair(architecture: str | None = None, noise: float = 0.1):
    target = tiny(architecture)
    return target, noisy_copy(target, noise)


def settings(draft, threshold: float, longest: int = 9) -> dict[str, Any]:
    """Return settings by which steps end in the midst of the draft's text, with two characters that it has."""
    free = draft.generate(prompt(), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, 7:].tolist()
    end = Characters().decode(free[3:5])
    return {"threshold": threshold, "longest": longest, "end": end, "question": "@AB"}


def mixed(naive: Naive, ids: list[int], count: int) -> tuple[list[int], Naive]:
    """Return the text and its writer at a threshold that some steps of several lengths pass, and others do not."""
    naive.write(ids, count)
    for score in sorted(naive.scores):
        again = replace(naive, settings=naive.settings | {"threshold": score + 1e-3}, scores=[], kept=[])
        text = again.write(ids, count)
        if len({*again.kept}) > 1 and len(again.kept) < len(again.scores):
            return text, again
    raise AssertionError("no such threshold")


def expected(target, draft) -> tuple[list[int], Naive]:
    return mixed(Naive(target, draft, settings(draft, 0)), prompt()[0].tolist(), TOKENS)


@pytest.mark.parametrize(("architecture", "gamma"), [("llama", 1), ("mistral", 5), ("gpt2", 5)])
def test_text_is_that_of_a_naive_implementation(architecture: str, gamma: int):
    target, draft = pair(architecture)
    text, naive = expected(target, draft)
    out = steps(target, draft, naive.settings, num_assistant_tokens=gamma)
    assert out.sequences[0].tolist() == text
    stats = out.lossy_stats
    assert not stats.lossless
    assert stats.accepted_by["steps"] == sum(naive.kept)
    assert len(stats.trace) == stats.tokens == TOKENS
    assert stats.target_calls == stats.rounds >= len(naive.scores)


@pytest.mark.parametrize("longest", [1, 9, 64])
def test_a_threshold_of_0_is_the_draft_and_of_10_the_target(longest: int):
    target, draft = pair("llama")
    plain = {"target": target.generate(prompt(), **GREEDY), "draft": draft.generate(prompt(), **GREEDY)}
    assert not plain["target"].sequences.equal(plain["draft"].sequences)
    every, none = (steps(target, draft, settings(draft, threshold, longest)) for threshold in (0, 10))
    assert every.sequences.equal(plain["draft"].sequences)
    assert every.lossy_stats.accepted == every.lossy_stats.drafted == TOKENS
    assert 0 < every.lossy_stats.accepted_lossy < TOKENS, "the target would have written some of it"
    assert none.sequences.equal(plain["target"].sequences)
    assert none.lossy_stats.lossless
    assert none.lossy_stats.accepted_lossy == 0


def test_the_target_s_own_steps_are_decoded_speculatively():
    target = tiny("llama")
    draft = noisy_copy(target, 0.001)
    config = settings(draft, 10, longest=20)
    stats = steps(target, draft, config, num_assistant_tokens=6).lossy_stats
    assert stats.accepted_by["lossless"] > stats.corrected + stats.bonus
    assert stats.target_calls < TOKENS


@pytest.mark.parametrize("eos", [(), (2, 5, 17)])
def test_a_row_gets_what_it_gets_alone_and_ends_where_it_should(eos: tuple[int, ...]):
    target, draft = pair("llama")
    config = expected(target, draft)[1].settings
    more = {"eos_token_id": list(eos) or None, "pad_token_id": 0}
    out = steps(target, draft, config, **padded(), **more)
    for i, length in enumerate(LENGTHS):
        text = Naive(target, draft, config, eos=eos).write(prompt(length, seed=i)[0].tolist(), TOKENS)
        row = out.sequences[i, max(LENGTHS) - length :].tolist()
        assert row[: len(text)] == text
        assert not any(row[len(text) :])
        assert len(out.lossy_stats.rows[i].trace) == len(text) - length


def test_sentences_of_the_bundled_pair():
    """The target's own sentence ends its round, so that the draft writes the next one from its start."""
    bundled = pairs.load("arithmetic")
    eos = bundled.target.generation_config.eos_token_id
    config = {"threshold": 5, "longest": 40, "end": ".", "question": "\nRating: "}
    kept = scored = 0
    for example in bundled.task.examples("test", 2):
        given = bundled.tokenizer(example.prompt, return_tensors="pt")
        naive = Naive(bundled.target, bundled.draft, config, bundled.tokenizer, (eos,))
        text = naive.write(given["input_ids"][0].tolist(), 60)
        out = bundled.target.generate(
            **given, assistant_model=bundled.draft, lossy_mode="steps", lossy_config=config, max_new_tokens=60,
            tokenizer=bundled.tokenizer, do_sample=False, return_dict_in_generate=True,
        )  # fmt: skip
        assert out.sequences[0].tolist() == text
        assert out.lossy_stats.accepted_by["steps"] == sum(naive.kept)
        kept, scored = kept + len(naive.kept), scored + len(naive.scores)
    assert 0 < kept < scored


@pytest.mark.parametrize(("threshold", "law"), [(0, Q), (10, P)])
def test_drawn_tokens_have_the_law_of_who_wrote_them(threshold: float, law: list[float]):
    """The models' tokens are six letters, so no text ends a step before its longest."""
    target, draft = wide(P), wide(Q, seed=5)
    config = {"threshold": threshold, "longest": 7, "end": "Z", "question": "Q", "seed": 3}
    ids = torch.ones(10, 1, dtype=torch.long)
    out = steps(
        target, draft, config, input_ids=ids, attention_mask=ids, do_sample=True, top_k=0, max_new_tokens=300
    )  # fmt: skip
    counts = np.bincount(out.sequences[:, 1:].flatten(), minlength=VOCAB)
    assert chi_square_p(counts[: len(law)], np.array(law)) > 1e-5
    assert counts[len(law) :].sum() == 0
    assert out.lossy_stats.lossless == (threshold == 10)


def wide(law: list[float], **options: Any) -> Any:
    """Return a constant model of as many tokens as the tokenizer has."""
    return constant([*law, *[1e-30] * (VOCAB - len(law))], **options)


class Lengths(BaseStreamer):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.numel())

    def end(self) -> None:
        self.seen.append("end")


def test_a_kept_step_is_streamed_whole():
    target, draft = pair("llama")
    config = {"threshold": 0, "longest": 5, "end": "?", "question": "@AB"}
    out = steps(target, draft, config, streamer=(lengths := Lengths()), max_new_tokens=12)
    assert lengths.seen == [7, 5, 5, 2, "end"]
    assert out.lossy_stats.target_calls == 3


def test_limits_hold_within_steps():
    target, draft = pair("llama")
    every = settings(draft, 0, longest=16)
    plain = target.generate(prompt(), **GREEDY).sequences[0].tolist()
    strict = steps(target, draft, every | {"strict_first_n": 10}).sequences[0].tolist()
    assert strict[:17] == plain[:17]
    assert strict != plain
    assert steps(target, draft, every | {"budget": 0.0}).sequences[0].tolist() == plain
    some = steps(target, draft, every | {"budget": 0.2}).lossy_stats
    assert 0 < some.accepted_lossy <= 0.2 * TOKENS
    outside = steps(target, draft, every | {"scope": {"start": [1], "end": [1]}})
    assert outside.sequences[0].tolist() == plain


def test_inspection_shows_the_score():
    target, draft = pair("llama")
    _, naive = expected(target, draft)
    records = steps(target, draft, naive.settings | {"inspect": True}).lossy_stats.records
    kept = [record for record in records if record.rule == "steps"]
    said = {record.round: record.scores.quantities["score"] for record in kept}
    assert list(said.values()) == pytest.approx([x for x in naive.scores if x >= naive.settings["threshold"]], 1e-4)


REFUSED = {
    "no tokenizer": ({"tokenizer": None}, ["'steps'", "`tokenizer=`"]),
    "no draft model": ({"assistant_model": None, "prompt_lookup_num_tokens": 3}, ["'steps'", "`assistant_model`"]),
    "a tree": ({"lossy_config": {"tree": {}}}, ["'steps'", "`tree`"]),
    "states": ({"output_hidden_states": True}, ["`output_hidden_states`", "'steps'"]),
    "a list": ({"lossy_mode": ["steps", "topk"], "lossy_config": None}, ["Steps(", "leave out that rule"]),
    "losslessness": ({"lossy_config": {"require_lossless": True}}, ["`require_lossless`", "Steps("]),
    "a threshold": ({"lossy_config": {"threshold": 11}}, ["`threshold`", ">= 0 and <= 10", "11"]),
    "no end": ({"lossy_config": {"end": ""}}, ["`end`", "'steps'", "text"]),
    "a question": ({"lossy_config": {"question": ""}}, ["`question`", "'steps'", "text"]),
    "positions": ({"max_new_tokens": 248}, ["`max_new_tokens`", "`question`", "256 positions"]),
}


def test_a_recurrent_target_is_refused_and_a_recurrent_draft_drafts():
    target, draft = tiny("llama"), family("Mamba")
    with pytest.raises(LossyError, match=r"'steps' lets the target forget.*MambaForCausalLM keeps a recurrent state"):
        steps(draft, target, {"question": "@AB"})
    every = steps(target, draft, {"question": "@AB", "threshold": 0}, max_new_tokens=9)
    assert every.sequences.equal(draft.generate(prompt(), **GREEDY | {"max_new_tokens": 9}).sequences)


def test_transformers_own_loop_has_no_steps():
    target, draft = pair()
    with pytest.raises(LossyError, match="'steps' lets the target score whole steps"):
        LossyVerification("steps", target, assistant_model=draft)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str):
    change, needles = REFUSED[case]
    target, draft = pair()
    if "lossy_config" in change:
        change = change | {"lossy_config": change["lossy_config"] and {"question": "@AB", **change["lossy_config"]}}
    kwargs = {"assistant_model": draft, "lossy_mode": "steps", "lossy_config": {"question": "@AB"}}
    forwards = []
    target.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(LossyError) as error:
        target.generate(**({"input_ids": prompt(), "tokenizer": Characters()} | GREEDY | kwargs | change))
    assert all(needle in str(error.value) for needle in needles), str(error.value)
    assert not forwards


def test_a_question_that_no_digit_can_follow_is_refused():
    class Pairs(Characters):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [*super().encode(text), 0]

    with pytest.raises(LossyError, match=r"`question` of the rule 'steps'.*'@AB'.*end it so that a digit"):
        Steps(question="@AB").step_drafting.bind(Pairs(), frozenset())
