"""enable() reaches generate(), touches nothing else, and can be undone."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import operator
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    StoppingCriteria,
)
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist import disable, enable, enabled, last_stats
from hf_lossy_assist.compat.models import unwrap
from hf_lossy_assist.generation import enabling
from tests.chains import Generating
from tests.tiny_models import noisy_copy, prompt, tiny

KWARGS = {"max_new_tokens": 12, "eos_token_id": None, "do_sample": False}


@pytest.fixture(autouse=True)
def _not_enabled(_enabled_and_undone):
    """These tests enable for themselves."""
    disable()
    yield
    enable()


def patched() -> list[str]:
    return [
        name
        for name in enabling._WRAPPERS
        if hasattr(getattr(GenerationMixin, name), "__wrapped__")
        and "hf_lossy_assist" in getattr(GenerationMixin, name).__code__.co_filename
    ]


def test_enable_is_counted_and_undone():
    target = tiny()
    assert not patched()
    with enabled(target):
        enable()
        with enabled(target):
            assert len(patched()) == len(enabling._WRAPPERS)
        disable()
        assert len(patched()) == len(enabling._WRAPPERS)
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
    "a drafter closes over it": lambda: ((model := tiny()), {"candidate_generator": lambda **_: Echo(model)}),
}


class Echo(CandidateGenerator):
    def __init__(self, model: Any) -> None:
        self.model = model

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return torch.cat([input_ids, input_ids[:, -1:]], dim=1), None

    def update_candidate_strategy(self, *_: Any) -> None:
        pass


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


def test_a_model_that_went_away_does_not_stay_enabled():
    target = tiny()
    enable(target)
    del target
    gc.collect()
    enable()
    disable()
    assert not patched()


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"do_sample": True},
        {"num_beams": 2},
        {"assistant_model": noisy_copy(tiny())},
        {"prompt_lookup_num_tokens": 3},
        {"lossy_mode": None},
    ],
    ids=str,
)
def test_calls_without_a_mode_are_what_they_were(kwargs):
    target, texts = tiny(), []
    plain_kwargs = {key: value for key, value in kwargs.items() if key != "lossy_mode"}
    for active in (False, True):
        torch.manual_seed(0)
        if active:
            with enabled():
                texts.append(target.generate(prompt(), **(KWARGS | kwargs)))
        else:
            texts.append(target.generate(prompt(), **(KWARGS | plain_kwargs)))
    assert torch.equal(*texts)
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
        # keyword > argument > model, and None switches the model's default off
        target.generate(prompt(), assistant_model=draft, lossy_mode="typical", lossy_config={}, **KWARGS)
        assert last_stats(target).accepted_by.keys() == {"typical"}
        stock = target.generate(prompt(), assistant_model=draft, lossy_mode=None, **KWARGS)
        assert last_stats(target) is None
        assert target.generation_config.to_dict() == before
    assert stock.tolist() == tiny().generate(prompt(), **KWARGS).tolist()
    target.save_pretrained(tmp_path / "model")
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert reloaded.generation_config.lossy_mode == "topk"


@pytest.mark.parametrize("where", ["keyword", "argument", "model", "assistant", "nowhere"])
def test_gamma_counts_wherever_it_is_set(where):
    target = tiny()
    draft = copy.deepcopy(target)
    kwargs, expected = dict(KWARGS), 5 if where == "nowhere" else 3
    if where == "keyword":
        kwargs["num_assistant_tokens"] = 3
        target.generation_config.num_assistant_tokens = 7
    elif where == "argument":
        kwargs = {"generation_config": GenerationConfig(num_assistant_tokens=3, **KWARGS)}
        target.generation_config.num_assistant_tokens = 7
    elif where == "model":
        target.generation_config.num_assistant_tokens = 3
        draft.generation_config.num_assistant_tokens = 7
    elif where == "assistant":
        draft.generation_config.num_assistant_tokens = 3
    before = [model.generation_config.to_dict() for model in (target, draft)]
    with enabled(target):
        target.generate(prompt(), assistant_model=draft, lossy_mode="lossless", **kwargs)
    assert last_stats(target).accepted_histogram[-1] >= 1
    assert len(last_stats(target).accepted_histogram) == expected + 1
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


class Recorder(BaseStreamer):
    def __init__(self):
        self.chunks, self.ended = [], 0

    def put(self, value):
        assert not self.ended
        self.chunks.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


def test_streamers_get_every_token_once():
    target, streamer = tiny(), Recorder()
    with enabled(target):
        out = target.generate(
            prompt(), assistant_model=noisy_copy(target), lossy_mode="topk", streamer=streamer, **KWARGS
        )
    assert functools.reduce(operator.iadd, streamer.chunks, []) == out[0].tolist()
    assert streamer.chunks[0] == prompt()[0].tolist()
    assert len(streamer.chunks) > 2
    assert streamer.ended == 1


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


def test_settings_of_another_mode_are_not_inherited():
    target = tiny()
    target.generation_config = GenerationConfig(lossy_mode="topk", lossy_config={"k": 3}, pad_token_id=0)
    draft = noisy_copy(target)
    with enabled(target):
        target.generate(prompt(), assistant_model=draft, lossy_mode="lossless", **KWARGS)
        assert last_stats(target).accepted_by.keys() == {"lossless"}
        target.generate(prompt(), assistant_model=draft, lossy_config={"k": 1}, **KWARGS)
        assert last_stats(target).lossless, "settings alone go with the default mode"


def test_a_reminder_of_the_model_s_context_comes_as_in_plain_generation(caplog: pytest.LogCaptureFixture):
    target = tiny()
    target.config.max_position_embeddings = 16
    logger = logging.getLogger("transformers.generation.stopping_criteria")
    logger.addHandler(caplog.handler)
    said = []
    for longest in (16, 17, 18):
        for more in ({}, {"prompt_lookup_num_tokens": 3, "lossy_mode": "lossless"}):
            logger.warning_once.__func__.cache_clear()
            caplog.clear()
            with enabled(target):
                target.generate(prompt(), max_length=longest, eos_token_id=None, **more)
            said.append({record.getMessage() for record in caplog.records if "friendly reminder" in record.msg})
    logger.removeHandler(caplog.handler)
    assert said[::2] == said[1::2]
    assert [len(messages) for messages in said[::2]] == [0, 0, 1]


def test_an_interrupted_call_leaves_no_statistics_of_an_earlier_one():
    target = tiny()
    kwargs = {"inputs": prompt(), "prompt_lookup_num_tokens": 3, "lossy_mode": "lossless", "max_new_tokens": 8}
    with enabled(target):
        target.generate(**kwargs)
        assert last_stats(target) is not None
        with pytest.raises(KeyboardInterrupt):
            target.generate(**kwargs, stopping_criteria=[Interrupts()])
        assert last_stats(target) is None


class Interrupts(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        raise KeyboardInterrupt
