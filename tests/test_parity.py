"""Lossless greedy decoding is plain greedy decoding, token for token."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

import hf_lossy_assist
from hf_lossy_assist.compat import CACHE
from tests.parity import assert_lossless, assert_same_text
from tests.tiny_models import ARCHITECTURES, VOCAB, WINDOWS_ROLL_BACK, noisy_copy, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 24}


def both(target, draft, gamma=5, ids=None, **kwargs):
    """Return the outputs of plain generate() and of ours, whose text is the same."""
    drafting = {"assistant_model": draft, "num_assistant_tokens": gamma}
    return assert_lossless(target, drafting, input_ids=prompt() if ids is None else ids, **GREEDY | kwargs)


# Drafts are shorter and longer than the windows of the models that have one.
@pytest.mark.parametrize(
    ("architecture", "gamma"),
    [*((name, 5) for name in ARCHITECTURES), ("llama", 1), *((name, 16) for name in ("llama", "mistral", "gemma3"))],
)
def test_every_architecture(architecture, gamma):
    target, lengths = tiny(architecture), set()
    kwargs = GREEDY | {"input_ids": prompt(), "eos_token_id": None}
    plain = target.generate(**kwargs)
    for noise in (0.0, 0.01, 0.03):
        ours = target.generate(
            **kwargs, assistant_model=noisy_copy(target, noise), lossy_mode="lossless", num_assistant_tokens=gamma
        )
        assert_same_text(ours.sequences, plain)
        lengths |= {i for i, count in enumerate(ours.lossy_stats.accepted_histogram) if count}
    # The drafts are chosen so that rounds end early, late and not at all.
    assert {0, gamma} <= lengths


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recorded_outputs_are_those_of_plain_generation(architecture):
    target = tiny(architecture)
    target.set_attn_implementation("eager")
    plain, ours = both(
        target,
        noisy_copy(target),
        eos_token_id=None,
        output_scores=True,
        output_hidden_states=True,
        output_attentions=True,
        repetition_penalty=1.2,
    )
    for name in ("scores", "logits"):
        for a, b in zip(getattr(plain, name), getattr(ours, name), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    for name in ("hidden_states", "attentions"):
        for step, (a, b) in enumerate(zip(getattr(plain, name), getattr(ours, name), strict=True)):
            for layer_a, layer_b in zip(a, b, strict=True):
                torch.testing.assert_close(layer_a, layer_b, atol=1e-4, rtol=1e-4, msg=f"{name} of step {step}")


def test_eos_inside_a_round_ends_the_text_where_plain_does():
    target = tiny()
    free, _ = both(target, target, eos_token_id=None)
    generated = free.sequences[0, 7:].tolist()
    for eos in (generated[3], generated[11], [generated[20], generated[9]]):
        plain, ours = both(target, noisy_copy(target, 0.01), gamma=8, eos_token_id=eos)
        assert plain.sequences.shape[1] < 7 + 24
        assert len(ours.lossy_stats.trace) == ours.sequences.shape[1] - 7


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 13])
def test_length_is_never_overshot(length):
    target = tiny()
    both(target, target, gamma=6, max_new_tokens=length, eos_token_id=None)


class StopAtSum(StoppingCriteria):
    """Stops when a function of the whole prefix says so; remembers the prefixes it saw."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.shape[1])
        return (input_ids.sum(-1) % 17 == 0).to(torch.bool)


def test_custom_criteria_see_every_prefix_and_cut_where_plain_does():
    target = tiny()
    seen = []
    for run in range(2):
        criterion = StopAtSum()
        kwargs = GREEDY | {"eos_token_id": None, "stopping_criteria": StoppingCriteriaList([criterion])}
        if run:
            kwargs |= {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless"}
        out = target.generate(input_ids=prompt(), **kwargs)
        seen.append((criterion.seen, out.sequences.tolist()))
    assert seen[0] == seen[1]


class ForbidLast(LogitsProcessor):
    """Looks at the prefix: the last token may not be repeated, nor any token congruent to the length."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, input_ids[0, -1]] = -torch.inf
        scores[:, torch.arange(VOCAB) % 5 == input_ids.shape[1] % 5] = -torch.inf
        return scores


@pytest.mark.parametrize(
    "processing",
    [
        {"logits_processor": LogitsProcessorList([ForbidLast()])},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 20, "eos_token_id": list(range(3, 20))},
        {"forced_eos_token_id": 5},
        {"bad_words_ids": [[7], [9, 11]], "suppress_tokens": [12, 13]},
        {"sequence_bias": [[[7, 8], 5.0]]},
        {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 2},
        {"prefix_allowed_tokens_fn": lambda batch_id, ids: [3 + (len(ids) * 7) % 40, 4, 5]},
    ],
    ids=lambda processing: next(iter(processing)),
)
def test_logits_processors_that_look_at_the_prefix(processing):
    target = tiny()
    kwargs = {"eos_token_id": None} | processing
    both(target, noisy_copy(target, 0.01), **kwargs)


def test_left_padded_prompt():
    target = tiny()
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.long), prompt()], dim=1)
    mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)], dim=1)
    _, ours = both(target, noisy_copy(target, 0.01), ids=ids, attention_mask=mask, eos_token_id=None)
    alone, _ = both(target, noisy_copy(target, 0.01), eos_token_id=None)
    assert ours.sequences[0, 4:].tolist() == alone.sequences[0].tolist()
    same = target.generate(
        input_ids=ids, attention_mask=mask, assistant_model=target, lossy_mode="lossless", **GREEDY, eos_token_id=None
    )
    assert same.lossy_stats.acceptance_rate == 1.0, "the draft must see the padding too"


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
def test_a_cache_can_be_passed_in_returned_and_used_on(architecture):
    target, ids = tiny(architecture), prompt(12)
    kwargs = GREEDY | {"max_new_tokens": 10, "eos_token_id": None}
    lossy = {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless"}
    plain = target.generate(input_ids=ids, **(kwargs | {"max_new_tokens": 30}))
    text, cache = ids, DynamicCache(config=target.config)
    if architecture != "llama" and not WINDOWS_ROLL_BACK:
        with pytest.raises(hf_lossy_assist.LossyError, match=r"sliding window; upgrade to 5\.17"):
            target.generate(input_ids=ids, **{CACHE: cache}, **kwargs, **lossy)
        return
    for extra in (lossy, {}, lossy):  # ours, plain, ours again, all on one cache
        mask = torch.ones_like(text)  # a random model may well generate the padding token
        out = target.generate(input_ids=text, attention_mask=mask, **{CACHE: cache}, **kwargs, **extra)
        text, cache = out.sequences, getattr(out, CACHE)
        assert cache.get_seq_length() == text.shape[1] - 1
    assert text.tolist() == plain.sequences.tolist()
    plain_layers = getattr(plain, CACHE).layers
    for ours_layer, plain_layer in zip(cache.layers, plain_layers, strict=True):
        assert ours_layer.keys.shape == plain_layer.keys.shape, "no rejected or out-of-window states stay behind"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs(dtype):
    target = tiny().to(dtype)
    out = target.generate(
        input_ids=prompt(), assistant_model=noisy_copy(target, 0.01), lossy_mode="dropmatch", **GREEDY
    )
    assert out.logits[0].dtype == torch.float32
    assert out.lossy_stats.accepted > 0


def test_draft_of_another_precision():
    target = tiny()
    both(target, noisy_copy(target, 0.01).to(torch.bfloat16), eos_token_id=None)


def test_prompt_lookup():
    target = tiny()
    ids = prompt(6).repeat(1, 4)
    plain, _ = both(target, target, ids=ids, eos_token_id=None)
    ours = target.generate(
        input_ids=ids, prompt_lookup_num_tokens=6, lossy_mode="lossless", **GREEDY, eos_token_id=None
    )
    assert_same_text(ours.sequences, plain)
    assert ours.lossy_stats.drafted > 0


def test_stop_strings():
    from benchmarks.bundled_pair.recipe import build_tokenizer

    tokenizer = build_tokenizer(200)
    target = tiny()
    target.resize_token_embeddings(len(tokenizer))
    draft = noisy_copy(target, 0.003)
    ids = tokenizer("Question: How many", return_tensors="pt").input_ids
    free, _ = both(target, draft, ids=ids, eos_token_id=None)
    middle = tokenizer.decode(free.sequences[0, ids.shape[1] + 11 : ids.shape[1] + 13])
    plain, _ = both(target, draft, ids=ids, eos_token_id=None, stop_strings=[middle], tokenizer=tokenizer)
    assert plain.sequences.shape[1] < free.sequences.shape[1]
