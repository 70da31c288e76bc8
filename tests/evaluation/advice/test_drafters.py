"""Replays of drafters whose laws depend on where a draft began; the oracle is the loop itself."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist import enabled
from hf_lossy_assist.drafting import lookup_first
from hf_lossy_assist.drafting.dflash_drafter import DFlashDrafter
from hf_lossy_assist.drafting.eagle3_drafter import Eagle3Drafter
from hf_lossy_assist.drafting.mtp import mtp_of
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.evaluation.advice.advising import Advising, target_alone
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.evaluation.requests import run_request
from tests import dflash_heads, eagle3_heads, mtp_checkpoints
from tests.tiny_models import noisy_copy, prompt, tiny

LIMIT = 24
PROMPTS = [prompt(seed=seed)[0].tolist() for seed in range(2)]
STEADY = Costs((1,), (0.0,), (0.0,), (0.1,), {1: (1.0,), 33: (1.0,)})


@pytest.fixture(scope="module")
def models_of(tmp_path_factory):
    """Return a target and what drafts for it, by name, the same ones to all who ask."""

    @functools.cache
    def make(name: str) -> Models:
        models = made(name)
        endless = copy.deepcopy(models.target) if name in ("eagle3", "dflash") else models.target
        endless.generation_config.eos_token_id = None
        return replace(models, target=endless)

    def made(name: str) -> Models:
        if name == "gemma 4":
            gemma4 = pytest.importorskip("tests.gemma4_models", reason="no Gemma 4 assistants in this version")
            return Models(gemma4.tiny_gemma4(), gemma4.tiny_assistant())
        if name == "mtp":
            target = mtp_checkpoints.loaded(mtp_checkpoints.write("mimo", tmp_path_factory.mktemp("mimo")))
            mtp_checkpoints.taught(target)
            return Models(target, mtp_of(target))
        if name in ("eagle3", "dflash"):
            return Models(*{"eagle3": eagle3_heads, "dflash": dflash_heads}[name].trained_pair())
        target = tiny("qwen3", seed=1)  # whose texts repeat themselves
        draft = {"look-up": None, "look-up first": noisy_copy(target, 0.3), "draft": noisy_copy(target, 0.2)}[name]
        return Models(target, draft, lookup=0 if name == "draft" else 4)

    return make


@pytest.fixture(autouse=True)
def short_matches(monkeypatch):
    """Let random texts repeat themselves."""
    monkeypatch.setattr(lookup_first, "SHORTEST", 1)


def advising(models: Models, tokenizer, modes: str = "lossless", **given) -> Advising:
    answers = {name: given.pop(name) for name in ("temperature", "batch_size") if name in given}
    prompts = given.pop("prompts", PROMPTS)
    return Advising(target_alone(models, tokenizer, prompts, max_new_tokens=LIMIT, **answers), modes, **given)


def seen(about: Advising, mode, gamma: int) -> list[tuple[int, int, int]]:
    """Return each prompt's rounds, kept tokens and looked-up ones, of the loop."""
    made = [run_request(about.models, replace(mode, gamma=gamma), batch, LIMIT) for batch in about.texts.batches]
    return [(*one.work[0][:2], one.stats.looked_up) for one in made]


@pytest.mark.parametrize("name", ["eagle3", "dflash", "mtp", "gemma 4", "look-up", "look-up first"])
def test_lossless_is_replayed_as_the_loop_runs_it(name, models_of, tokenizer):
    about = advising(models_of(name), tokenizer)
    mode, rule = about.rules[0]
    kept = 0
    for gamma in (1, 3, 4):
        walk = about.replay(mode, rule).walks[gamma]
        looked_up = walk.looked_up @ np.arange(walk.looked_up.shape[1]) * np.ones(len(walk.rounds))
        expected = seen(about, mode, gamma)
        assert [*zip(walk.rounds, walk.kept, looked_up, strict=True)] == expected
        assert (sum(row[2] for row in expected) > 0) == (name == "look-up first")
        kept += sum(row[1] for row in expected)
    assert kept > 0 or name == "gemma 4", "of some drafts a part is kept"


def test_a_draft_model_read_by_start_is_the_one_read_by_position(models_of, tokenizer, monkeypatch):
    """Both ways to read agree where a law does not depend on where a draft began."""
    by_position = advising(models_of("draft"), tokenizer, "lossless,typical,regret")
    by_start = advising(models_of("draft"), tokenizer, "lossless,typical,regret")
    monkeypatch.setitem(by_start.__dict__, "_longest", 6)
    assert by_position.laws.p.shape[2] == 1
    monkeypatch.setattr(Advising, "_by_position", False)
    assert by_start.laws.p.shape[2] == 6
    for mode, rule in by_position.rules:
        own, other = by_start.replay(mode, rule).walks, by_position.replay(mode, rule).walks
        for gamma in (1, 4, 6):
            for field in ("sizes", "kept", "others", "nats", "worst"):
                one, two = (getattr(x[gamma], field) for x in (own, other))
                np.testing.assert_allclose(one, two, atol=1e-3, err_msg=f"{mode.label} {gamma} {field}")


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_laws_are_those_of_the_loop_s_drafts(name, models_of, tokenizer, monkeypatch):
    """Up to its first token that is not the text's, a draft of the loop has the law of its step."""
    models, noted = models_of(name), []
    kind = {"eagle3": Eagle3Drafter, "dflash": DFlashDrafter}[name]
    own = kind.propose

    def proposing(self, ids, layout, remaining):
        draft = own(self, ids, layout, remaining)
        noted.append((ids.shape[1], draft))
        return draft

    about = advising(models, tokenizer)
    laws, text, prompt_length = about.laws, about.texts.read[0]["ids"], len(PROMPTS[0])
    monkeypatch.setattr(kind, "propose", proposing)
    asked = {"do_sample": False, "lossy_mode": "lossless", "lossy_config": {"inspect": True}, "num_assistant_tokens": 4}
    with enabled(models.target):
        models.target.generate(text[None, :prompt_length], assistant_model=models.draft, max_new_tokens=LIMIT, **asked)
    compared = set()
    for width, draft in noted:
        for k in range(len(draft)):
            if not torch.equal(draft.tokens[0, :k], text[width : width + k]):
                break
            q, found = draft.logits[0, k].softmax(-1), laws.q[0, width - prompt_length + k, k].softmax(-1)
            torch.testing.assert_close(q.topk(8).values, found.topk(8).values, atol=1e-4, rtol=1e-3)
            compared.add(k)
    assert compared >= {0, 1}


@pytest.mark.parametrize(("name", "given", "error", "said"), [
    ("eagle3", {"modes": "judge"}, LossyValueError, "needs a head"),
    ("dflash", {"modes": "dropmatch"}, LossyUnsupportedError, "rules that read states or dropped heads"),
    ("dflash", {"modes": "topk@9"}, LossyValueError, "`num_assistant_tokens` has to be at most 5"),
    ("look-up", {"modes": "fsd"}, LossyValueError, "needs the draft's distribution"),
    ("look-up", {"modes": "topk@auto"}, LossyValueError, "put it after the @"),
    ("look-up first", {"rows": 2, "prompts": PROMPTS * 2}, LossyUnsupportedError, "replayed for single texts only"),
])  # fmt: skip
def test_what_can_t_be_replayed_is_refused_before_any_forward(
    models_of, tokenizer, monkeypatch, name, given, error, said
):
    monkeypatch.setattr(Advising, "laws", None)
    with pytest.raises(error, match=said):
        advising(models_of(name), tokenizer, **given).run()


@pytest.mark.parametrize(("name", "more"), [
    ("look-up", {"prompt_lookup_num_tokens": 4}),
    ("look-up first", {"prompt_lookup_num_tokens": 4}),
    ("dflash", {}),
])  # fmt: skip
def test_settings_name_what_drafts(name, more, models_of, tokenizer, monkeypatch):
    monkeypatch.setattr(Advising, "_costs", lambda self, length: [STEADY] * 3)
    advice = advising(models_of(name), tokenizer, "topk@4", guard=1).run()
    settings = advice.best("topk").settings
    assert settings == {"do_sample": False, "lossy_mode": "topk", "num_assistant_tokens": 4} | more
    assert (advice.needed() is None) or name != "look-up first"
