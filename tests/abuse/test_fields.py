"""Any combination of fields either works or raises an error that is ours, or that transformers has for its own."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from hf_lossy_assist import LossyError, last_stats
from hf_lossy_assist.acceptors import REGISTRY, settings_of
from hf_lossy_assist.compat import CACHE
from tests.abuse.calls import (
    ABUSE,
    DRAFT,
    GENERATION,
    HEADS,
    JUNK,
    RUN_SETTINGS,
    TARGET,
    attempt,
    lossy_fields,
    names_of,
    some,
)
from tests.tiny_models import prompt

RUN_ONLY = ("output_scores", "output_logits")


@settings(ABUSE, max_examples=40)
@given(
    fields=lossy_fields(),
    generation=some(GENERATION, 5),
    do_sample=st.booleans(),
    length=st.integers(1, 9),
    tokens=st.integers(1, 14),
    gamma=st.sampled_from([1, 2, 5, 40, "auto"]),
)
def test_what_can_work_works(fields, generation, do_sample, length, tokens, gamma):
    kwargs = generation | {"input_ids": prompt(length), "max_new_tokens": tokens, "do_sample": do_sample}
    names = names_of(fields["lossy_mode"])
    if "sprinter" in names:
        kwargs = {name: value for name, value in kwargs.items() if name not in RUN_ONLY}
    plain = attempt(TARGET.generate, **kwargs)
    ours = attempt(TARGET.generate, assistant_model=DRAFT, num_assistant_tokens=gamma, **fields, **kwargs)
    event(f"plain worked: {plain.worked}, ours: {ours.worked}")
    if not plain.worked:
        assert ours.worked or isinstance(ours.error, (type(plain.error), LossyError))
        return
    if ours.error is not None:
        raise ours.error
    (text,) = ours.text
    assert text[:length] == kwargs["input_ids"][0].tolist()
    assert length < len(text) <= length + tokens
    stats = last_stats(TARGET)
    assert len(stats.trace) == len(text) - length
    if stats.lossless and not do_sample:
        assert ours.text == plain.text


RULE_KEYS = [(name, each.name) for name, rule in REGISTRY.items() for each in settings_of(rule)]


@settings(ABUSE, max_examples=60)
@given(where=st.sampled_from([*RULE_KEYS, *((None, key) for key in RUN_SETTINGS)]), value=JUNK)
def test_a_setting_of_any_value_works_or_is_refused_before_any_forward(where, value):
    """A value that can work may be among them; an error always is ours, and names the setting."""
    rule, key = where
    head = HEADS.get(rule)
    fields = {"lossy_mode": rule or "topk", "lossy_config": {key: value}} | ({"lossy_head": head} if head else {})
    for do_sample in (False, True):
        kwargs = {"input_ids": prompt(), "assistant_model": DRAFT, "max_new_tokens": 6, "do_sample": do_sample}
        out = attempt(TARGET.generate, **kwargs, **fields)
        if not out.worked:
            assert isinstance(out.error, LossyError), repr(out.error)
            assert key in str(out.error)
            assert not out.forwards


@settings(ABUSE, max_examples=60)
@given(
    name=st.sampled_from(
        ["lossy_mode", "lossy_config", "lossy_head", "num_assistant_tokens", "candidate_generator", "assistant_model",
         "assistant_tokenizer", "assistant_confidence_threshold", "num_assistant_tokens_schedule"]
    ),
    value=JUNK,
    mode=st.sampled_from(["topk", "judge", "sprinter", ["topk", "judge"]]),
    in_config=st.booleans(),
)  # fmt: skip
def test_a_field_of_any_value_works_or_is_refused_before_any_forward(name, value, mode, in_config):
    fields = {
        "lossy_mode": mode,
        "assistant_model": DRAFT,
        "lossy_head": HEADS["sprinter" if mode == "sprinter" else "judge"],
    }
    if mode == "topk":
        fields.pop("lossy_head")
    fields[name] = value
    kwargs = {"input_ids": prompt(), "max_new_tokens": 6, "do_sample": False}
    if in_config and not name.endswith(("model", "generator", "tokenizer")):
        kwargs["generation_config"] = GenerationConfig()
        setattr(kwargs["generation_config"], name, fields.pop(name))
    out = attempt(TARGET.generate, **kwargs, **fields)
    if not out.worked:
        assert isinstance(out.error, LossyError), repr(out.error)
        assert not out.forwards


@settings(ABUSE, max_examples=40)
@given(
    fields=lossy_fields(("lossless", "topk", "dropmatch", "judge")),
    name=st.sampled_from([*GENERATION, "max_new_tokens", "max_length", "num_beams", "num_return_sequences", "do_sample",
                          "use_cache", "guidance_scale", "stop_strings", "attention_mask", "streamer",
                          "stopping_criteria", "logits_processor", "cache_implementation", CACHE,
                          "generation_config", "no_such_argument", "prompt_lookup_num_tokens"]),
    value=JUNK,
    do_sample=st.booleans(),
)  # fmt: skip
def test_an_argument_of_transformers_fails_as_it_does_without_us(fields, name, value, do_sample):
    """With a mode, ours is the error that plain generation raises, or a LossyError; never another kind."""
    kwargs = {"input_ids": prompt(), "max_new_tokens": 5, "do_sample": do_sample} | {name: value}
    if name == "max_length":
        kwargs.pop("max_new_tokens")
    ours = attempt(TARGET.generate, assistant_model=DRAFT, **fields, **kwargs)
    if ours.worked or isinstance(ours.error, LossyError):
        return
    plain = attempt(TARGET.generate, **kwargs)
    assert type(plain.error) is type(ours.error), (plain.error, ours.error)
