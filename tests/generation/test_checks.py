"""Bad input gives an error that names argument, rule and value, before any forward pass."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    EncoderDecoderCache,
    MistralConfig,
    QuantizedCache,
    StaticCache,
)
from transformers.cache_utils import DynamicLayer

import hf_lossy_assist
from hf_lossy_assist import errors
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.errors import LossyError, LossyUnsupportedError, LossyValueError
from tests.acceptors.fixtures import Repeating, verifier_head
from tests.acceptors.table import judge_head
from tests.chains import Generating
from tests.encoder_decoders import made
from tests.tiny_models import VOCAB, LlamaConfig, LlamaForCausalLM, constant, noisy_copy, padded, prompt, resized, tiny
from tests.trial.drawing import counted

TARGET = tiny("llama")
TARGET.config.num_mtp_layers = 1  # without layers; or `use_mtp` would be refused by itself
DRAFT = noisy_copy(TARGET)
JUDGE = judge_head(constant([0.5, 0.5]), constant([0.5, 0.5]))
OTHER_VOCABULARY = LlamaForCausalLM(
    LlamaConfig(vocab_size=9999, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
)

ALONE = {"assistant_model": None, "prompt_lookup_num_tokens": 3}
LOOKUP = {"prompt_lookup_num_tokens": 6, "num_assistant_tokens": 3}
STOP = {"stop_drafting": {"by": "acceptance"}}
NOTHING_DRAFTED = "`num_assistant_tokens` is 0, so nothing is drafted: "


# name: (keyword arguments beside the defaults, what the message has to contain)
CASES = {
    "config without a mode": ({"lossy_mode": ..., "lossy_config": {"beta": 1}}, ["lossy_config", "lossy_mode"]),
    "scope without a tokenizer": ({"lossy_config": {"scope": "thinking"}}, ["`scope`", "'<think>'", "`tokenizer=`"]),
    "no such head": ({"lossy_mode": "judge", "lossy_head": "./nowhere"}, ["`lossy_head`", "'./nowhere'"]),
    "another model's head": ({"lossy_mode": "judge", "lossy_head": JUDGE}, ["trained for", "ConstantLM", "hidden"]),
    "require_lossless": (
        {"lossy_mode": "topk", "lossy_config": {"require_lossless": True}},
        ["require_lossless", "TopK("],
    ),
    "a rule of transformers' own": (
        {"assistant_ensemble_weight": 0.5},
        ["`assistant_ensemble_weight` 0.5", "'ensemble'", "`weight`"],
    ),
    "no drafter": ({"assistant_model": None}, ["drafter", "assistant_model", "candidate_generator", "'lossless'"]),
    "drafter without q": (
        ALONE | {"lossy_mode": "fsd"},
        ["'fsd'", "distribution", "`prompt_lookup_num_tokens` gives none", "assistant_model"],
    ),
    "drafter without q, of a rule with a setting without it": (
        ALONE | {"lossy_mode": "dropmatch"},
        ["'dropmatch'", "distribution", "`prompt_lookup_num_tokens` gives none", "set `criterion=\"naive\"`"],
    ),
    "one of several rules without q": (
        {"lossy_mode": ["topk", "dropmatch"], "assistant_model": None, "candidate_generator": Repeating(0)},
        ["the rule 'dropmatch' needs", "Repeating", "set `criterion=\"naive\"`"],
    ),
    "factory of something else": (
        {"assistant_model": None, "candidate_generator": lambda **context: 7},
        ["candidate_generator", "7"],
    ),
    "prompt as embeddings": ({"inputs_embeds": torch.zeros(1, 7, 32)}, ["input_ids", "inputs_embeds"]),
    "own drafter without q": (
        {"lossy_mode": "fsd", "assistant_model": None, "candidate_generator": Repeating(0)},
        ["'fsd'", "distribution", "Repeating"],
    ),
    "candidate generator": ({"candidate_generator": 5}, ["candidate_generator", "5"]),
    "vocabularies differ": (
        {"assistant_model": OTHER_VOCABULARY},
        ["assistant_model", "64", "9999", "assistant_tokenizer"],
    ),
    "another tokenizer": ({"assistant_tokenizer": object()}, ["`assistant_tokenizer`", "`tokenizer`"]),
    "static cache with windows": (
        {CACHE: StaticCache(config=MistralConfig(sliding_window=8), max_cache_len=64)},
        [f"`{CACHE}`", "StaticSlidingWindowLayer", "DynamicCache"],
    ),
    "static cache and a rule that can't": (
        {CACHE: StaticCache(config=TARGET.config, max_cache_len=64), "output_attentions": True},
        [f"`{CACHE}`", "static", "output_attentions"],
    ),
    "a tree and a rule of two distributions": (
        {"lossy_mode": "fsd", "lossy_config": {"tree": {}}},
        ["'fsd'", "the draft's distribution", "`tree`"],
    ),
    "a tree and a rule that runs ahead": (
        {"lossy_mode": "sprinter", "lossy_head": verifier_head(TARGET, DRAFT), "lossy_config": {"tree": {}}},
        ["'sprinter'", "unverified tokens", "`tree`"],
    ),
    "a tree of prompt lookup": (
        ALONE | {"lossy_config": {"tree": {}}},
        ["`tree`", "`assistant_model`", "other drafters"],
    ),
    "a tree on a short static cache": (
        {CACHE: StaticCache(config=TARGET.config, max_cache_len=64), "lossy_config": {"tree": {"nodes": 100}}},
        ["static cache", "trees need", "slots"],
    ),
    "a tree and lookup": (LOOKUP | {"lossy_config": {"tree": {}}}, ["`prompt_lookup_num_tokens`", "leave out either"]),
    "lookup without q": (
        LOOKUP | {"lossy_mode": "fsd"},
        ["'fsd'", "distribution", "`prompt_lookup_num_tokens`", "leave it"],
    ),
    "lookup and a drafter of every round": (
        LOOKUP | {"use_mtp": True},
        ["`prompt_lookup_num_tokens`", "every round"],
    ),
    "lookup of no number": ({"prompt_lookup_num_tokens": "3"}, ["`prompt_lookup_num_tokens`", "an int >= 1", "'3'"]),
    "lookup of a negative number, alone": (
        {"assistant_model": None, "prompt_lookup_num_tokens": -1},
        ["`prompt_lookup_num_tokens`", "an int >= 1", "-1"],
    ),
    "rows and a streamer": (padded() | {"streamer": SimpleNamespace(put=lambda ids: None)}, ["`streamer`", "4 rows"]),
    "rows and a cache": (padded() | {CACHE: DynamicCache()}, [f"`{CACHE}`", "4 rows"]),
    "rows and one drafter": (
        padded() | {"assistant_model": None, "candidate_generator": Generating(DRAFT, 3)},
        ["`candidate_generator`", "4 rows"],
    ),
    "block drafts without a draft": (
        {"assistant_model": None, "speculation_type": "dflash"},
        ["`speculation_type`", "`assistant_model`"],
    ),
    "an end of drafts and prompt lookup": (
        ALONE | {"lossy_config": STOP},
        ["`stop_drafting`", "`assistant_model`"],
    ),
    "an end of drafts and a tree": ({"lossy_config": STOP | {"tree": {}}}, ["`stop_drafting`", "`tree`"]),
    "verification by blocks, prompt lookup": (
        ALONE | {"lossy_config": {"verification": "block"}, "do_sample": True},
        ['`verification="token"` in `lossy_config`', "`assistant_model`"],
    ),
    "verification by blocks and a tree": ({"lossy_config": {"verification": "block", "tree": {}}}, ["tree"]),
    "no drafts and another rule": (
        {"num_assistant_tokens": 0, "lossy_mode": "topk"},
        [NOTHING_DRAFTED + "take 'lossless' for `lossy_mode`, not 'topk'"],
    ),
    "no drafts and a tree": (
        {"num_assistant_tokens": 0, "lossy_config": {"tree": {"depth": 2}}},
        [NOTHING_DRAFTED + "leave out `tree` in `lossy_config`"],
    ),
    "no drafts and their end": (
        {"num_assistant_tokens": 0, "lossy_config": STOP},
        [NOTHING_DRAFTED + "leave out `stop_drafting` in `lossy_config`"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused_before_any_forward(case: str):
    change, needles = CASES[case]
    kwargs = {"input_ids": prompt(), "assistant_model": DRAFT, "lossy_mode": "lossless", "max_new_tokens": 4}
    kwargs = {key: value for key, value in (kwargs | change).items() if value is not ...}
    with counted(TARGET, DRAFT, OTHER_VOCABULARY) as forwards, pytest.raises(LossyError) as error:
        TARGET.generate(**kwargs)
    assert isinstance(error.value, ValueError)
    for needle in needles:
        assert needle in str(error.value)
    assert not forwards


def test_a_cache_without_a_part_for_the_encoder_is_refused():
    """With a T5, even plain `generate()` then writes another text than with an empty cache of two parts."""
    target = made("t5")
    drafting = {"assistant_model": noisy_copy(target), "lossy_mode": "lossless"}
    kwargs = {"input_ids": prompt(7), "max_new_tokens": 8, **drafting}
    both = {CACHE: EncoderDecoderCache(DynamicCache(), DynamicCache())}
    with pytest.raises(LossyUnsupportedError, match=r"DynamicCache alone would mix .*pass an EncoderDecoderCache"):
        target.generate(**kwargs, **{CACHE: DynamicCache()})
    assert target.generate(**kwargs, **both).equal(target.generate(**kwargs))


def test_quantised_caches_are_refused_before_any_forward():
    class Quantised(QuantizedCache):
        def __init__(self):
            self.layers = [DynamicLayer()]

    # transformers itself refuses the second one where a package is not installed.
    for asked, remedy in [
        ({CACHE: Quantised()}, "use a dynamic cache"), ({"cache_implementation": "quantized"}, "leave it out")
    ]:  # fmt: skip
        with pytest.raises(LossyError, match=rf"rounds tokens together.*{remedy}"):
            TARGET.generate(input_ids=prompt(), assistant_model=DRAFT, lossy_mode="lossless", **asked)


def test_models_that_can_t_run_over_trees_are_refused():
    kwargs = {"input_ids": prompt(), "lossy_mode": "lossless", "lossy_config": {"tree": {}}, "max_new_tokens": 4}
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)).eval()
    target, draft = tiny("llama"), noisy_copy(TARGET)
    for model in (target, draft, bloom):
        model.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass"))
    with pytest.raises(LossyError, match=r"`tree`.*BloomForCausalLM takes no masks of ancestors"):
        bloom.generate(assistant_model=draft, **kwargs)
    with pytest.raises(LossyError, match=r"`tree`.*BloomForCausalLM takes no masks of ancestors"):
        target.generate(assistant_model=bloom, **kwargs)
    draft.config._attn_implementation = "flash_attention_2"
    with pytest.raises(LossyError, match=r"`tree`.*'flash_attention_2' attention takes no mask of ancestors"):
        target.generate(assistant_model=draft, **kwargs)
    with pytest.raises(LossyError, match="`tree` is set, but transformers' assisted generation"):
        hf_lossy_assist.LossyVerification("lossless", target, tree={})


def test_a_model_that_cannot_generate_is_refused():
    with pytest.raises(LossyError, match=r"`model`.*Linear"):
        hf_lossy_assist.enable(torch.nn.Linear(1, 1))


def test_a_head_that_is_never_called_is_reported():
    class Bypassing(type(constant([0.5, 0.5]))):
        def get_output_embeddings(self):
            return torch.nn.Identity()

    model, draft = constant([0.5, 0.3, 0.2]), constant([0.5, 0.3, 0.2])
    model.__class__ = Bypassing
    with pytest.raises(LossyError, match="output embeddings"):
        model.generate(torch.tensor([[1]]), assistant_model=draft, lossy_mode="dropmatch", max_new_tokens=4)


def test_ears_warns_once_that_greedy_decoding_has_no_threshold():
    errors.warn_once.cache_clear()
    kwargs = {"input_ids": prompt(), "assistant_model": DRAFT, "lossy_mode": "ears", "max_new_tokens": 4}
    with pytest.warns(UserWarning, match=r"ears.*greedy"):
        TARGET.generate(**kwargs, do_sample=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        TARGET.generate(**kwargs, do_sample=False)
        TARGET.generate(**kwargs, do_sample=True)


UNKNOWN = {
    "beyond the target": (VOCAB + 9, VOCAB, {}),
    "negative": (-1, VOCAB, {}),
    "beyond both, the draft's vocabulary is padded": (VOCAB + 300, VOCAB + 64, {}),
    "nothing reads but the target": (VOCAB, None, {"prompt_lookup_num_tokens": 3}),
    "in a padded row": (VOCAB, VOCAB, {}),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_token_without_an_embedding_is_named_before_any_forward(case: str):
    token, of_draft, options = UNKNOWN[case]
    target, inputs = tiny(), padded() if case == "in a padded row" else {"input_ids": prompt()}
    inputs["input_ids"][-1, -1] = token
    models = [target]
    if of_draft is not None:
        models.append(draft := resized(tiny(), of_draft))
        options = {"assistant_model": draft}
    for model in models:
        model.register_forward_pre_hook(lambda *_: pytest.fail("a forward ran"))
    both = rf"{VOCAB} tokens" + ("" if of_draft is None else rf", and `assistant_model` {of_draft}")
    with pytest.raises(LossyValueError, match=rf"`input_ids` holds the token {token}, but .* {both};"):
        target.generate(**inputs, **options, lossy_mode="lossless", max_new_tokens=5)
