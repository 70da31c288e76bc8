"""Whatever a caller says about each token, and however a model counts: lossless text is plain text, or refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, StaticCache

from hf_lossy_assist.compat import probe
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.models import forward_accepts
from hf_lossy_assist.compat.probe import obstacle_to_rollback, shares_forwards
from tests.architectures import COUNTING, ENCODERS, TYPED, family, made
from tests.nightly import nightly, spread
from tests.tiny_models import padded, prompt, prompts
from tests.trial.calls import filled
from tests.trial.exact import CHAINS, DRAFTERS, assert_refused, assert_right, exact

ROWS = {
    "one": lambda: {"input_ids": prompt(), "attention_mask": torch.ones(1, 7).long()},
    "equal": lambda: {"input_ids": prompts(3),
                      "attention_mask": torch.ones(3, 7).long()},
    "padded": padded,
}  # fmt: skip


@spread(name=COUNTING, case=[("default length", "padded"), ("look-up", "equal")])
def test_rows_of_decoders_that_count_by_column(name: str, case: tuple[str, str]):
    drafter, rows = case
    target, draft = exact(name)
    assert not shares_forwards(target)
    assert_right(target, ROWS[rows](), CHAINS[drafter](draft))


@pytest.mark.parametrize("name", ["bloom", "mpt", "llama", "gpt2", "bert", "gemma3n_text", "gemma4_text"])
def test_rows_of_other_decoders_are_decoded_together(name: str):
    target, draft = exact(name)
    assert shares_forwards(target)
    assert_right(target, padded(), CHAINS["model"](draft))


@pytest.mark.parametrize("name", ["bart", "lfm2", "lfm2_moe", "gemma3n_text", "gemma4_text"])
def test_a_draft_of_another_kind(name: str):
    """It counts by column, keeps states that can't be moved with rows, or has layers that share their keys."""
    assert_right(exact("llama")[0], padded(), CHAINS["model"](exact(name)[0]))


@pytest.mark.parametrize("name", nightly(TYPED, but=("gpt2", "gpt_neo", "bert", "big_bird", "rembert", "roformer")))
def test_token_types_of_drafted_tokens(name: str):
    """The last type differs from those before; plain decoding goes on with it."""
    target, draft = exact(name)
    for drafter, rows, last in (("look-up", "one", 1), ("model", "equal", 0), ("model", "padded", 1)):
        inputs = ROWS[rows]()
        types = torch.randint(2, inputs["input_ids"].shape, generator=torch.Generator().manual_seed(3))
        types[:, -2], types[:, -1] = 1 - last, last
        assert_right(target, inputs | {"token_type_ids": types}, CHAINS[drafter](draft))


def shifted(inputs: Mapping[str, Any], by: int = 7, apart: int = 3) -> dict[str, Any]:
    """Return inputs with positions of the caller's own: rows begin ``by`` tokens late, and each later than the last."""
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0) + by
    return dict(inputs) | {"position_ids": positions + apart * torch.arange(len(positions))[:, None]}


@spread(name=["llama", "gpt2", "opt", "mistral", "biogpt", "ctrl"], drafter=["model", "look-up", "tree"])
def test_positions_of_a_caller_s_own(name: str, drafter: str):
    target, draft = exact(name)
    for rows in ("one", "padded") if drafter in ("model", "tree") else ("equal",):
        assert_right(target, shifted(ROWS[rows]()), DRAFTERS[drafter](draft))


@spread(name=["llama", "gpt2"], drafter=["model", "look-up", "tree"])
def test_positions_of_a_caller_s_own_on_a_static_cache(name: str, drafter: str):
    target, draft = exact(name)
    assert_right(target, shifted(padded()), DRAFTERS[drafter](draft), cache_implementation="static")


def test_the_highest_position_is_the_text_s_own():
    """A model with just as many positions as the texts reach is asked for no other."""
    target = made("gpt2", n_positions=7 + 14 + 7 + 6)
    for drafter in DRAFTERS:
        assert_right(target, shifted(ROWS["equal"]()), DRAFTERS[drafter](target), eos_token_id=None)


_ROTARY = {"rope_theta": 10000.0, "original_max_position_embeddings": 24}
SWITCHING = {
    "dynamic": ("llama", {"max_position_embeddings": 24, "rope_parameters": _ROTARY | {
        "rope_type": "dynamic", "factor": 2.0}}),
    "longrope": ("phi3", {"original_max_position_embeddings": 24, "rope_parameters": _ROTARY | {
        "rope_type": "longrope", "short_factor": [1.0, 1.2, 1.3, 1.5], "long_factor": [3.0, 4.0, 5.0, 6.0]}}),
}  # fmt: skip


@functools.cache
def switching(name: str) -> PreTrainedModel:
    """Return a model whose rotary frequencies change in the middle of a text."""
    kind, changes = SWITCHING[name]
    return made(kind, **changes)


def ahead(target: PreTrainedModel, padding: int = 0) -> dict[str, Any]:
    """Return a cache of nine tokens, five new ids, and a mask over all of them."""
    mask = torch.ones(1, 14).long()
    mask[:, :padding] = 0
    return {CACHE: filled(target, prompt(9), mask[:, :9]), "input_ids": prompt(5, seed=4), "attention_mask": mask}


@spread(name=["llama", "gpt2", "mistral", "gemma3_text", *SWITCHING], drafter=["default length", "look-up", "tree"])
def test_caches_with_only_the_new_ids(name: str, drafter: str):
    target, draft = (switching(name), exact("llama")[1]) if name in SWITCHING else exact(name)
    own = ahead(target) | {"position_ids": torch.arange(12, 17)[None]}
    for inputs in (own, ahead(target, padding=2)):
        assert_right(target, inputs, DRAFTERS[drafter](draft), eos_token_id=None)


def test_a_static_cache_with_only_the_new_ids():
    target, draft = exact("llama")
    inputs, cache = ahead(target), StaticCache(config=target.config, max_cache_len=64)
    with torch.no_grad():
        target(prompt(9), **{CACHE: cache}, use_cache=True)
    inputs[CACHE] = cache
    assert_refused(target, inputs, CHAINS["model"](draft), f"`{CACHE}`", "`input_ids` lacks")
    own = inputs | {"position_ids": torch.arange(12, 17)[None]}
    assert_refused(target, own, CHAINS["look-up"](draft), f"`{CACHE}`", "`input_ids` lacks")
    whole = torch.cat([prompt(9), inputs["input_ids"]], dim=1)
    assert_right(target, inputs | {"input_ids": whole}, CHAINS["model"](draft), eos_token_id=None)


@spread(name=ENCODERS, drafter=["model", "look-up", "tree"])
def test_encoders_are_no_targets_and_no_drafts(name: str, drafter: str):
    config = copy.deepcopy(family(name)[0].config)
    config.is_decoder = False
    encoder = type(family(name)[0])(config).eval()
    assert_refused(encoder, padded(), DRAFTERS[drafter](encoder), "is_decoder=True")
    if drafter != "look-up":
        assert_refused(family("llama")[0], padded(), DRAFTERS[drafter](encoder), "`assistant_model`", "is_decoder=True")


ONE_BY_ONE = {"prophetnet": AutoModelForSeq2SeqLM, "prophetnet alone": None, "fsmt": None, "cpmant": None}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_targets_that_read_one_token_at_a_time(name: str):
    target = made(name, auto=ONE_BY_ONE[name]).float()
    for rows in ("one", "equal"):
        assert_refused(target, ROWS[rows](), CHAINS["look-up"](target), "can read only one token")
        assert_refused(target, ROWS[rows](), CHAINS["model"](target), "`assistant_model`")


def test_a_model_without_a_cache_is_a_target_and_no_draft():
    target = made("openai-gpt")
    assert not forward_accepts(target, CACHE)
    for rows in ROWS:
        assert_right(target, ROWS[rows](), CHAINS["look-up"](target))
    for drafter in ("model", "tree"):
        assert_refused(target, padded(), DRAFTERS[drafter](target), "`assistant_model`", "keeps no cache")
        assert_refused(family("llama")[0], padded(), DRAFTERS[drafter](target), "`assistant_model`", "keeps no cache")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neo", "mpt", "trocr", "mvp"])
def test_models_are_asked_once_and_stay_as_they_were(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(probe, "_of_kinds", {})
    model = copy.deepcopy(family(name)[0])
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    forwards: list[int] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda *_: forwards.append(1))
    model.register_forward_pre_hook(lambda *_: pytest.fail("a user's hook on the model was called"))
    assert obstacle_to_rollback(model, several=True) is None
    asked = len(forwards)
    assert (
        obstacle_to_rollback(model, several=False) is obstacle_to_rollback(copy.deepcopy(model), several=True) is None
    )
    assert 0 < asked == len(forwards)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
