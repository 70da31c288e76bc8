"""A refused value that a model's files set is answered with its place, and with what to pass in place of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from transformers import GenerationConfig, MptConfig, MptForCausalLM

from hf_lossy_assist.errors import LossyError
from hf_lossy_assist.generation.lossy_call import LossyCall
from tests.acceptors.fixtures import verifier_head
from tests.tiny_models import LlamaForCausalLM, noisy_copy, prompt, tiny

TREE = {"lossy_config": {"tree": {}}}
LOOK_UP = {"assistant_model": None, "prompt_lookup_num_tokens": 3}
STOP = {"lossy_config": {"stop_drafting": {"by": "acceptance"}}}
# name: (field, value, what else the call has, what the message tells to pass)
REFUSED = {
    "beams": ("num_beams", 4, {}, "num_beams=1"),
    "group beams": ("num_beam_groups", 2, {}, "num_beam_groups=1"),
    "constraints": ("constraints", [object()], {}, "constraints=None"),
    "forced words": ("force_words_ids", [[5]], {}, "force_words_ids=None"),
    "contrastive search": ("penalty_alpha", 0.6, {}, "penalty_alpha=None"),
    "DoLa": ("dola_layers", "high", {}, "dola_layers=None"),
    "no cache": ("use_cache", False, {}, "use_cache=True"),
    "guidance": ("guidance_scale", 1.5, {}, "guidance_scale=None"),
    "scores": ("output_scores", True, {"lossy_mode": "sprinter"}, "output_scores=False"),
    "draft length": ("num_assistant_tokens", -1, {}, "num_assistant_tokens='auto'"),
    "schedule": ("num_assistant_tokens_schedule", "often", {}, "num_assistant_tokens_schedule='constant'"),
    "confidence": ("assistant_confidence_threshold", 7, {}, "assistant_confidence_threshold=0"),
    "block drafts": ("speculation_type", "dflash", LOOK_UP, "speculation_type=None"),
    "early exit": ("assistant_early_exit", 99, {}, "assistant_early_exit=None"),
    "two stops": ("assistant_confidence_threshold", 0.4, STOP, "assistant_confidence_threshold=0"),
    "tree and confidence": (
        "assistant_confidence_threshold", 0.4, TREE, "assistant_confidence_threshold=0",
    ),
    "tree and schedule": (
        "num_assistant_tokens_schedule", "heuristic", TREE,
        "num_assistant_tokens_schedule='constant'",
    ),
    "no MTP layers": ("use_mtp", True, {}, "use_mtp=False"),
    "no MTP layers, alone": ("use_mtp", True, LOOK_UP, "use_mtp=False"),
}  # fmt: skip
OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


def call(target: LlamaForCausalLM, draft: LlamaForCausalLM, **kwargs: Any) -> Any:
    if kwargs.get("lossy_mode") == "sprinter":
        kwargs |= {"lossy_head": verifier_head(target, draft), "return_dict_in_generate": True}
    defaults = {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": "lossless", "max_new_tokens": 4}
    return target.generate(**defaults | kwargs)


@pytest.mark.parametrize(
    ("case", "place"),
    [
        *product(REFUSED, ("keyword", "argument", "the model's")),
        *((case, "the assistant's") for case, (name, *_) in REFUSED.items() if name in OF_ASSISTANTS),
    ],
)
def test_a_refusal_says_where_a_value_came_from(case: str, place: str):
    name, value, more, _ = REFUSED[case]
    target = tiny()
    draft = noisy_copy(target)
    if place == "keyword":
        more = more | {name: value}
    elif place == "argument":
        more = more | {"generation_config": GenerationConfig(max_new_tokens=4, **{name: value})}
        place = "the `generation_config` argument"
    else:
        config = (draft if place == "the assistant's" else target).generation_config
        setattr(config, name, value)
        place = f"{place} `generation_config`"
    for model in (target, draft):
        model.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass"))
    with pytest.raises(LossyError) as error:
        call(target, draft, **more)
    assert f"`{name}`" in str(error.value)
    assert str(error.value).count(" is set in ") == (place != "keyword")
    assert place == "keyword" or f"`{name}` is set in {place}" in str(error.value)


SAVED = {
    "a key": ({"lossy_mode": "topk", "lossy_config": {"kk": 3}}, "lossy_config={}"),
    "a value": ({"lossy_mode": "topk", "lossy_config": {"k": "3"}}, "lossy_config={}"),
    "a limit": ({"lossy_mode": "topk", "lossy_config": {"scope": "nowhere"}}, "lossy_config={}"),
    "a rule": ({"lossy_mode": "tpok"}, "lossy_mode='lossless'"),
}


@pytest.mark.parametrize("place", ["the `generation_config` argument", "the model's `generation_config`", "a keyword"])
@pytest.mark.parametrize("case", SAVED)
def test_a_refused_lossy_field_says_which_file_has_it(case: str, place: str):
    fields, remedy = SAVED[case]
    target = tiny()
    inputs = {"input_ids": prompt(), "assistant_model": noisy_copy(target), "max_new_tokens": 4}
    if "argument" in place:
        inputs["generation_config"] = GenerationConfig(max_new_tokens=4, **fields)
    elif "model" in place:
        vars(target.generation_config).update(fields, _from_model_config=False)
    else:
        inputs |= fields
    with pytest.raises(LossyError) as error:
        target.generate(**inputs)
    name = remedy.partition("=")[0]
    assert str(error.value).endswith(f"`{name}` is set in {place}") == (place != "a keyword")
    assert target.generate(**inputs | eval(f"dict({remedy})")) is not None


@pytest.mark.parametrize("case", REFUSED)
def test_a_keyword_goes_before_what_a_file_says(case: str):
    name, value, more, remedy = REFUSED[case]
    target = tiny()
    draft = noisy_copy(target)
    setattr(target.generation_config, name, value)
    assert call(target, draft, **more, **eval(f"dict({remedy})")) is not None


@pytest.mark.parametrize(
    ("own", "said", "gamma", "automatic"),
    [({}, {}, 5, True), ({}, {"num_assistant_tokens": 7}, 7, False), ({"num_assistant_tokens": 20}, {}, 20, False)],
    ids=["nothing", "another value", "the model's files"],
)
def test_what_transformers_has_filled_in_is_nobody_s_choice(own: dict, said: dict, gamma: int, automatic: bool):
    """Some pipelines pass a configuration with all of transformers' defaults."""
    target = tiny()
    vars(target.generation_config).update(own)
    filled, _ = target._prepare_generation_config(GenerationConfig(**said))
    kwargs = {"generation_config": filled, "assistant_model": noisy_copy(target), "lossy_mode": "lossless"}
    made = LossyCall.from_keywords(target, kwargs)
    assert (made.kind.lengths.num_assistant_tokens, made.kind.lengths.automatic) == (gamma, automatic)
    assert made.kind.lengths.confidence is None


def test_a_model_whose_config_turns_its_cache_off_is_refused_with_the_remedy():
    target = MptForCausalLM(MptConfig(d_model=16, n_heads=2, n_layers=1, vocab_size=64, max_seq_len=64)).eval()
    assert target.generation_config.use_cache is False
    with pytest.raises(LossyError, match=r"is False; .*`use_cache` is set in the model's `generation_config`"):
        call(target, noisy_copy(target))
    assert call(target, noisy_copy(target), use_cache=True).shape[1] > prompt().shape[1]


@pytest.mark.parametrize("place", ["the argument", "the model's"])
def test_a_file_s_look_up_drafts_several_texts_of_a_prompt_as_a_keyword_s_does(place: str):
    target, config = tiny(), GenerationConfig()
    config = config if place == "the argument" else target.generation_config
    config.update(prompt_lookup_num_tokens=3, num_return_sequences=3, do_sample=True, max_new_tokens=6)
    given = {"generation_config": config} if place == "the argument" else {}
    assert len(target.generate(prompt(), lossy_mode="lossless", **given)) == 3
    assert config.prompt_lookup_num_tokens == 3
