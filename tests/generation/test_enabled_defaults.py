"""An enabled model has defaults of its own; interruptions while enabling leave nothing half done."""

from __future__ import annotations

import copy
import gc
import sys

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, pipeline

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist import (
    GenerateLossyOutput,
    LossyStats,
    LossyValueError,
    collect,
    disable,
    enable,
    enabled,
    last_stats,
)
from hf_lossy_assist.generation import enabling
from tests.interrupting import InterruptAt
from tests.tiny_models import noisy_copy, prompt, tiny

KWARGS = {"max_new_tokens": 12, "eos_token_id": None, "do_sample": False}
PATCHED = tuple(enabling._WRAPPERS)


@pytest.fixture(autouse=True)
def _not_enabled(_enabled_and_undone):
    """These tests enable for themselves."""
    gc.collect()  # models of other tests that are enabled still
    disable()
    yield
    enable()


def patched() -> list[str]:
    return [name for name in PATCHED if hasattr(getattr(GenerationMixin, name), "_replaced_by_hf_lossy_assist")]


def test_an_interruption_while_enabling_leaves_nothing_that_can_not_be_enabled():
    """At every operation: who enables afterwards has lossy calls, and who disables has the plain method back."""
    target = tiny()
    fields = {**KWARGS, "assistant_model": noisy_copy(target), "lossy_mode": "topk", "return_dict_in_generate": True}
    original, operation, interruptions = GenerationMixin.generate, 0, 0
    while True:
        operation += 1
        sys.settrace(InterruptAt(enabling.__file__, operation))
        try:
            enable(target)
        except KeyboardInterrupt:
            interruptions += 1
        finally:
            sys.settrace(None)
        # A trace interrupts where no signal is handled, too: between the end of a block and the release of its lock.
        while enabling._lock._is_owned():
            enabling._lock.release()
        enable(target)
        assert len(patched()) == len(PATCHED), operation
        disable(target)
        assert GenerationMixin.generate is original, operation
        if interruptions < operation:
            break
    assert interruptions > 50
    with enabled(target):
        assert isinstance(target.generate(prompt(), **fields), GenerateLossyOutput)


def stats_of(model, **fields) -> LossyStats | None:
    """Return the statistics of a call, or None of an ordinary one."""
    with collect(model) as collected:
        model.generate(prompt(), **KWARGS, **fields)
    return collected.total if len(collected) else None


def test_defaults_of_an_enabled_model_are_those_of_its_calls():
    """Whatever a call says itself beats them; a mode of the call's own takes none of another mode's settings."""
    target, other = tiny(), tiny(seed=1)
    defaults = {"assistant_model": noisy_copy(target), "lossy_mode": "topk", "lossy_config": {"k": 3}}
    said = {**defaults, "num_assistant_tokens": 3}
    with enabled():
        expected = target.generate(prompt(), **KWARGS, **said)
        with enabled(target, **said):
            assert torch.equal(target.generate(prompt(), **KWARGS), expected)
            assert stats_of(target).accepted_by.keys() == {"topk"}
            assert len(stats_of(target).accepted_histogram) <= 4
            assert len(stats_of(target, num_assistant_tokens=1).accepted_histogram) <= 2
            assert stats_of(target, lossy_mode="ears").accepted_by.keys() == {"ears"}
            assert stats_of(target, prompt_lookup_num_tokens=2).draft_calls == 0
            assert stats_of(target, lossy_mode=None) is None
            assert stats_of(other) is None
            with enabled(target):
                assert stats_of(target).accepted_by.keys() == {"topk"}
            with enabled(target, lossy_mode="typical", prompt_lookup_num_tokens=2):
                assert stats_of(target).accepted_by.keys() == {"typical"}
            assert stats_of(target).accepted_by.keys() == {"topk"}
        assert stats_of(target) is None
        with enabled(target, assistant_model=noisy_copy(target)):
            assert stats_of(target).lossless


def test_enabling_again_is_undone_by_disabling_once():
    """As a notebook's cell that is run again does it."""
    target = tiny()
    for _ in range(2):
        enable(target)
        enable()
    disable()
    assert len(patched()) == len(PATCHED)
    disable(target)
    assert not patched()
    disable(target)
    assert not patched()


def test_enabling_again_changes_what_it_names_and_keeps_the_rest():
    target = tiny()
    enable(target, assistant_model=noisy_copy(target), num_assistant_tokens=2)
    assert stats_of(target).lossless
    enable(target, lossy_mode="topk", lossy_config={"k": 3})
    assert stats_of(target).accepted_by.keys() == {"topk"}
    assert stats_of(target).draft_calls
    assert len(stats_of(target).accepted_histogram) <= 3
    enable(target)
    enable(target, lossy_config={"k": 1})
    assert stats_of(target).accepted_by.keys() == {"topk"}
    assert stats_of(target).lossless
    enable(target, lossy_mode="typical")  # which has no setting `k`
    assert stats_of(target).accepted_by.keys() == {"typical"}
    enable(target, prompt_lookup_num_tokens=2)
    assert stats_of(target).draft_calls == 0
    enable(target, prompt_lookup_num_tokens=None)
    with pytest.raises(LossyValueError, match="needs a drafter"):
        stats_of(target)
    enable(target, lossy_mode=None)
    assert stats_of(target) is None
    disable(target)
    assert not patched()


def test_a_mode_that_does_not_go_with_what_is_kept_changes_nothing():
    target = tiny()
    enable(target, assistant_model=noisy_copy(target), lossy_mode="topk", lossy_config={"k": 3})
    with pytest.raises(LossyValueError, match="'beta' is unknown to the rule 'topk'"):
        enable(target, lossy_config={"beta": 0.1})
    assert stats_of(target).accepted_by.keys() == {"topk"}


def test_a_block_keeps_a_model_enabled_and_ends_by_itself():
    target = tiny()
    draft = noisy_copy(target)
    with enabled(target, assistant_model=draft, lossy_mode="topk"):
        with enabled(target, lossy_mode="typical"):
            enable(target, lossy_mode="ears")
            disable(target)
            assert stats_of(target).accepted_by.keys() == {"typical"}, "with the outer block's draft"
        assert stats_of(target).accepted_by.keys() == {"topk"}
        enable(target, num_assistant_tokens=1)
    assert len(patched()) == len(PATCHED)
    assert stats_of(target) is None, "the draft was the block's"
    disable(target)
    assert not patched()


def test_blocks_may_end_in_another_order_than_they_began():
    target = tiny()
    draft = noisy_copy(target)
    first, second = (enabled(target, assistant_model=draft, lossy_mode=mode) for mode in ("topk", "typical"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert stats_of(target).accepted_by.keys() == {"typical"}
    second.__exit__(None, None, None)
    assert not patched()


def test_the_last_statistics_are_those_of_the_last_call():
    target = tiny()
    lossy = {"assistant_model": noisy_copy(target), "lossy_mode": "topk"}
    with enabled(target):
        target.generate(prompt(), **KWARGS, **lossy)
        assert last_stats(target).accepted_by.keys() == {"topk"}
        with pytest.raises(LossyValueError):
            target.generate(prompt(), **KWARGS, **lossy, num_beams=2)
        assert last_stats(target) is not None, "no call was completed"
        target.generate(prompt(), **KWARGS)
        assert last_stats(target) is None
        target.generate(prompt(), **KWARGS, **lossy)
        target.generate(prompt(), **KWARGS, **lossy | {"lossy_mode": None})
        assert last_stats(target) is None
        target.generate(prompt(), **KWARGS, **lossy)
    assert last_stats(target) is not None
    with enabled():
        tiny(seed=1).generate(prompt(), **KWARGS)
    assert last_stats(target) is not None, "that was another model"


@pytest.mark.parametrize("way", ["enabled", "call", "tokenizer"])
def test_a_pipeline_drafts_with_a_padded_vocabulary(way):
    """Only where `pipeline()` itself is given the draft does transformers ask for a tokenizer."""
    tokenizer = build_tokenizer(100)
    target = tiny()
    target.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    draft = noisy_copy(target, 0.003)
    draft.resize_token_embeddings(len(tokenizer) + 28, mean_resizing=False)
    made = {"model": target, "tokenizer": tokenizer}
    settings = {"max_new_tokens": 12, "do_sample": False}
    plain = pipeline("text-generation", **made)("Question: How many", **settings)
    if way == "tokenizer":
        made |= {"assistant_model": draft, "assistant_tokenizer": tokenizer}
    pipe = pipeline("text-generation", **made)
    drafting = {"assistant_model": draft, "lossy_mode": "lossless"}
    with enabled(pipe, **drafting if way == "enabled" else {}):
        more = {"enabled": {}, "call": drafting, "tokenizer": {"lossy_mode": "lossless"}}[way]
        assert pipe("Question: How many", **settings, **more) == plain
    assert last_stats(pipe).accepted


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"lossy_mod": "topk"}, "did you mean 'lossy_mode'"),
        ({"max_new_tokens": 3}, "can't be a default"),
        ({"lossy_mode": "topq"}, "did you mean 'topk'"),
        ({"lossy_mode": "topk", "lossy_config": {"k": 0}}, "`k` of the rule 'topk'"),
    ],
)
def test_defaults_that_can_not_work_are_refused_at_once(defaults, message):
    target = tiny()
    with pytest.raises(LossyValueError, match=message):
        enable(target, **defaults)
    with pytest.raises(LossyValueError, match=message):
        enable(**defaults)
    assert patched() == []


def test_defaults_of_every_model_beat_a_configuration_and_are_beaten_by_a_model_s_own():
    target, other = tiny(), tiny(seed=1)
    draft = noisy_copy(target)
    hostile = GenerationConfig(**KWARGS, lossy_mode="judge", lossy_head="/etc", lossy_config={"certificate": "/etc"})
    with enabled(target), pytest.raises(LossyValueError, match="/etc"):
        target.generate(prompt(), generation_config=hostile, assistant_model=draft)
    with enabled(assistant_model=draft, lossy_mode="topk", lossy_config={"k": 3}):
        assert stats_of(target).accepted_by.keys() == stats_of(other).accepted_by.keys() == {"topk"}
        assert stats_of(draft) is None
        with collect(target) as stats:
            target.generate(prompt(), generation_config=hostile)
        assert stats.accepted_by.keys() == {"topk"}
        with enabled(target, lossy_mode="typical"):
            assert stats_of(target).accepted_by.keys() == {"typical"}
            with pytest.raises(LossyValueError, match="'beta' is unknown to the rule 'topk'"):
                enable(other, lossy_config={"beta": 0.1})
        assert stats_of(target, lossy_mode=None) is None
    assert not patched()


def test_a_copy_of_an_enabled_model_says_that_it_is_not_enabled():
    target = tiny()
    with enabled(target, assistant_model=noisy_copy(target)):
        clone = copy.deepcopy(target)
        assert stats_of(target) is not None
        assert stats_of(clone) is None
        with pytest.raises(LossyValueError, match="enable"):
            clone.generate(prompt(), lossy_mode="topk", **KWARGS)


def test_a_saved_mode_without_a_drafter_decodes_plainly_and_says_so_once():
    target = tiny()
    plain = target.generate(prompt(), **KWARGS)
    target.generation_config.lossy_mode = "typical"
    with enabled(target):
        with pytest.warns(UserWarning, match="nothing drafts"):
            assert torch.equal(target.generate(prompt(), **KWARGS), plain)
        assert stats_of(target) is None
        with pytest.raises(LossyValueError, match="needs a drafter"):
            target.generate(prompt(), lossy_mode="topk", **KWARGS)


def test_a_guard_outlives_the_mode_that_it_came_with():
    """Whoever sets `require_lossless` sees to it that no later mode is lossy, unless it is taken back by name."""
    target = tiny()
    guard = {"lossy_mode": "lossless", "lossy_config": {"require_lossless": True}}
    fields = {**KWARGS, "assistant_model": noisy_copy(target), "max_new_tokens": 3}
    lossy, freed = {"lossy_mode": "topk"}, {"lossy_mode": "topk", "lossy_config": {"require_lossless": False}}
    with enabled(target, **guard):
        for given in (lossy, {**lossy, "lossy_config": {"k": 3}}):
            with pytest.raises(LossyValueError, match="require_lossless"):
                target.generate(prompt(), **fields, **given)
            with enabled(target, **given), pytest.raises(LossyValueError, match="require_lossless"):
                target.generate(prompt(), **fields)
        target.generate(prompt(), **fields, **freed)
        with enabled(target, **freed):
            target.generate(prompt(), **fields)
        target.generate(prompt(), **KWARGS, lossy_mode=None)
    with enabled(target, **lossy), pytest.raises(LossyValueError, match="require_lossless"):
        target.generate(prompt(), **fields, lossy_config={"k": 3, "require_lossless": True})
    target.generation_config.lossy_config = {"require_lossless": True}
    with enabled(target), pytest.raises(LossyValueError, match="require_lossless"):
        target.generate(prompt(), **fields, **lossy)
