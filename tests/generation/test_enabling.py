"""enable() reaches generate(), touches nothing else, can be undone, and gives a model defaults of its own."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, pipeline

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
from hf_lossy_assist.compat.models import unwrap
from hf_lossy_assist.generation import enabling
from tests.chains import Generating
from tests.tiny_models import noisy_copy, prompt, tiny
from tests.trial.breaking import Interruption

KWARGS = {"max_new_tokens": 12, "eos_token_id": None, "do_sample": False}
PATCHED = tuple(enabling._WRAPPERS)
pytestmark = pytest.mark.usefixtures("disabled")


def patched() -> list[str]:
    return [name for name in PATCHED if hasattr(getattr(GenerationMixin, name), "_replaced_by_hf_lossy_assist")]


def stats_of(model, **fields) -> LossyStats | None:
    """Return the statistics of a call, or None of an ordinary one."""
    with collect(model) as collected:
        model.generate(prompt(), **KWARGS, **fields)
    return collected.total if len(collected) else None


def test_enable_is_counted_and_undone():
    target = tiny()
    assert not patched()
    with enabled(target):
        enable()
        enable()
        with enabled(target):
            assert len(patched()) == len(PATCHED)
        disable()
        assert len(patched()) == len(PATCHED)
    assert not patched()
    disable()
    disable(target)
    assert not patched()


def _peft() -> tuple[Any, Any]:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(base := tiny(), peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    return adapted, base


SELF_REFERRING: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "drafts for itself": lambda: ((model := tiny()), {"assistant_model": model}),
    "the base of an adapter drafts": lambda: ((both := _peft())[0], {"assistant_model": both[1]}),
    "a drafter closes over it": lambda: ((model := tiny()), {"candidate_generator": lambda **_: Generating(model, 3)}),
}


@pytest.mark.parametrize("how", ["enable", "enabled", "never disabled"])
@pytest.mark.parametrize("case", SELF_REFERRING)
def test_a_model_is_freed_whose_defaults_refer_to_it(case: str, how: str):
    model, defaults = SELF_REFERRING[case]()
    enable(model, **(defaults if how != "enabled" else {}))
    with enabled(model, **(defaults if how == "enabled" else {})):
        model.generate(input_ids=prompt(), max_new_tokens=8)
        assert last_stats(model).rounds > 0
    if how == "enable":
        disable(model)
    gone = weakref.ref(unwrap(model))
    del model, defaults
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_an_enabled_model_has_no_defaults(copied: Callable[[Any], Any]):
    enable(model := tiny(), assistant_model=tiny())
    other = copied(model)
    assert torch.equal(other.generate(prompt(), max_new_tokens=8), model.generate(prompt(), max_new_tokens=8))
    assert last_stats(model) is not None
    assert last_stats(other) is None
    with pytest.raises(LossyValueError, match="enable"):
        other.generate(prompt(), lossy_mode="topk", max_new_tokens=8)


@pytest.mark.parametrize("held", [False, True])
def test_generate_is_transformers_own_again_once_the_last_enabled_model_is_freed(held: bool):
    """Where another thread has the lock at that moment, the next call that undoes something undoes this, too."""
    target, other = tiny(), tiny()
    enable(target)
    enable(other)
    del target
    gc.collect()
    assert len(patched()) == len(PATCHED)
    with ThreadPoolExecutor(1) as others, ExitStack() as stack:
        if held:
            others.submit(enabling._lock.acquire).result()
            stack.callback(others.submit, enabling._lock.release)
        del other
        gc.collect()
        assert bool(patched()) is held
    disable()
    assert not patched()


ORDINARY = {
    "greedy": {}, "drawn": {"do_sample": True}, "beams": {"num_beams": 2}, "prompt": {"prompt_lookup_num_tokens": 3},
    "draft": {"assistant_model": noisy_copy(tiny())},
}  # fmt: skip


@pytest.mark.parametrize("call", ORDINARY)
@pytest.mark.parametrize("mode", [{}, {"lossy_mode": None}], ids=["unsaid", "none"])
def test_calls_without_a_mode_are_what_they_were(call, mode):
    target, kwargs = tiny(), KWARGS | ORDINARY[call]
    torch.manual_seed(0)
    plain = target.generate(prompt(), **kwargs)
    torch.manual_seed(0)
    with enabled():
        assert torch.equal(target.generate(prompt(), **kwargs, **mode), plain)
    assert last_stats(target) is None


def test_fields_of_a_generation_config_round_trip(tmp_path):
    target = tiny()
    target.generation_config.eos_token_id = None
    draft = noisy_copy(target)
    config = GenerationConfig(lossy_mode="topk", lossy_config={"k": 3, "seed": 1}, **KWARGS)
    config.save_pretrained(tmp_path)
    loaded = GenerationConfig.from_pretrained(tmp_path)
    assert (loaded.lossy_mode, loaded.lossy_config) == ("topk", {"k": 3, "seed": 1})
    with enabled(target):
        keyword = target.generate(prompt(), assistant_model=draft, lossy_mode="topk", lossy_config={"k": 3}, **KWARGS)
        given = target.generate(prompt(), assistant_model=draft, generation_config=loaded)
        assert given.tolist() == keyword.tolist()
        target.generation_config = GenerationConfig(
            lossy_mode="topk", lossy_config={"k": 3}, eos_token_id=None, pad_token_id=0
        )
        before = target.generation_config.to_dict()
        default = target.generate(prompt(), assistant_model=draft, **KWARGS)
        assert default.tolist() == keyword.tolist()
        assert last_stats(target).accepted_by.keys() == {"topk"}
        # keyword > argument > model, and None switches the model's default off; a mode comes with its own settings only
        assert stats_of(target, assistant_model=draft, lossy_mode="typical").accepted_by.keys() == {"typical"}
        assert stats_of(target, assistant_model=draft, lossy_config={"k": 1}).lossless
        stock = target.generate(prompt(), assistant_model=draft, lossy_mode=None, **KWARGS)
        assert last_stats(target) is None
        assert target.generation_config.to_dict() == before
    assert stock.tolist() == tiny().generate(prompt(), **KWARGS).tolist()
    target.save_pretrained(tmp_path / "model")
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert reloaded.generation_config.lossy_mode == "topk"


GAMMA = {  # of the call, its configuration, the target and the draft; the first that is set counts
    "keyword": (3, None, 7, None),
    "argument": (None, 3, 7, None),
    "model": (None, None, 3, 7),
    "assistant": (None, None, None, 3),
    "nowhere": (None, None, None, None),
}


@pytest.mark.parametrize("where", GAMMA)
def test_gamma_counts_wherever_it_is_set(where):
    keyword, argument, of_target, of_draft = ({} if x is None else {"num_assistant_tokens": x} for x in GAMMA[where])
    target = tiny()
    draft = copy.deepcopy(target)
    target.generation_config.update(**of_target)
    draft.generation_config.update(**of_draft)
    if argument:
        keyword |= {"generation_config": GenerationConfig(**argument)}
    before = [model.generation_config.to_dict() for model in (target, draft)]
    with enabled(target):
        target.generate(prompt(), assistant_model=draft, lossy_mode="lossless", **keyword, **KWARGS)
    assert last_stats(target).accepted_histogram[-1] >= 1
    assert len(last_stats(target).accepted_histogram) == (5 if where == "nowhere" else 3) + 1
    assert before == [model.generation_config.to_dict() for model in (target, draft)]


def test_the_heuristic_schedule_changes_gamma_but_no_configuration():
    target = tiny()
    draft = copy.deepcopy(target)
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"
    draft.generation_config.num_assistant_tokens = 1
    before = draft.generation_config.to_dict()
    with enabled(target):
        target.generate(prompt(), assistant_model=draft, lossy_mode="lossless", **(KWARGS | {"max_new_tokens": 30}))
    assert last_stats(target).accepted_histogram[:6] == (0, 1, 0, 1, 0, 1), "1, 3, 5, … after complete drafts"
    assert draft.generation_config.to_dict() == before


def test_a_compiled_wrapper_is_looked_through():
    target = tiny()
    compiled = torch.compile(target, backend="eager")
    with enabled(compiled):
        target.generate(prompt(), assistant_model=noisy_copy(target), lossy_mode="lossless", **KWARGS)
    assert last_stats(compiled).rounds > 0


def test_a_candidate_generator_instance_or_factory():
    target = tiny()
    draft = noisy_copy(target)
    plain = target.generate(prompt(), **KWARGS)
    made = []

    def factory(input_ids, generation_config, logits_processor, model_kwargs):
        made.append(generation_config.max_length)
        return Generating(draft, 4, generation_config.max_length, processors=logits_processor)

    with enabled(target):
        for drafter in (factory, Generating(draft, 4)):
            out = target.generate(prompt(), candidate_generator=drafter, lossy_mode="lossless", **KWARGS)
            assert out.tolist() == plain.tolist()
            assert last_stats(target).drafted > 0
    assert made == [7 + 12]
    assert last_stats(draft) is None


def test_an_interruption_while_enabling_leaves_nothing_that_can_not_be_enabled():
    """At every moment: who enables afterwards has lossy calls, and who disables has the plain method back."""
    target = tiny()
    fields = {**KWARGS, "assistant_model": noisy_copy(target), "lossy_mode": "topk", "return_dict_in_generate": True}
    original, moment, interrupted = GenerationMixin.generate, 0, True
    while interrupted:
        moment += 1
        interrupted = Interruption(moment).during(lambda: enable(target))
        # A trace interrupts where no signal is handled, too: between the end of a block and the release of its lock.
        while enabling._lock._is_owned():
            enabling._lock.release()
        enable(target)
        assert len(patched()) == len(PATCHED), moment
        disable(target)
        assert GenerationMixin.generate is original, moment
    assert moment > 20
    with enabled(target):
        assert isinstance(target.generate(prompt(), **fields), GenerateLossyOutput)


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


def test_enabling_again_changes_what_it_names_and_keeps_the_rest():
    target = tiny()
    enable(target, assistant_model=noisy_copy(target), num_assistant_tokens=2)
    assert stats_of(target).lossless
    enable(target, lossy_mode="topk", lossy_config={"k": 3})
    with pytest.raises(LossyValueError, match="'beta' is unknown to the rule 'topk'"):
        enable(target, lossy_config={"beta": 0.1})  # changes nothing
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
