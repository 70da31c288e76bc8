"""A prompt is read in chunks where ``prefill_chunk_size`` says so, by the target and by a draft model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.compat.probe import ask
from hf_lossy_assist.generation.drafters.draft_model import ModelSource, draft_runner
from tests.architectures import family
from tests.nightly import spread
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 12, "return_dict_in_generate": True}
ROWS = padded((40, 23, 31))


def widths_of(model: Any) -> list[int]:
    """Note how many tokens each forward of a model reads."""
    widths: list[int] = []
    embeddings = model.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    return widths


READ = {16: [16, 16, 8], 20: [20, 20], 39: [39, 1], 40: [40], 64: [40], 1: [1] * 40}


@spread(chunk=READ, case=itertools.product([{"input_ids": prompt(40)}, ROWS], [None, "static"]))
def test_both_models_read_chunks_as_plain_decoding_does(chunk: int, case: tuple[dict, str | None]):
    (inputs, cache), plain = case, READ[chunk]
    kwargs = GREEDY | inputs | {"prefill_chunk_size": chunk, "cache_implementation": cache}
    target, gamma = tiny(), 4
    ask(target)  # by forwards that are no call's
    draft, widths = noisy_copy(target), widths_of(target)
    expected = target.generate(**kwargs, output_logits=True)
    assert widths[: len(plain)] == plain
    widths.clear()
    of_draft = widths_of(draft)
    ours = target.generate(**kwargs, assistant_model=draft, num_assistant_tokens=gamma, lossy_mode="lossless")
    assert_same_rows(ours.sequences, expected)
    assert of_draft[: len(plain)] == plain
    assert widths[: len(plain)] == [*plain[:-1], plain[-1] + gamma]  # the draft is verified with the last chunk


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "look-up": (tiny, {"assistant_model": None, "prompt_lookup_num_tokens": 3}),
    "tree": (tiny, {"lossy_config": {"tree": {"depth": 3, "top_k": 2}}}),
    "recurrent": (lambda: family("mamba2")[0], {}),
    "recurrent and attending": (lambda: family("falcon_h1")[0], {}),
    "a window": (lambda: tiny("mistral"), {}),
    "states of every token": (tiny, {"output_hidden_states": True, "output_attentions": True}),
    "the prompt's states": (tiny, {"lossy_mode": ["dropmatch", "lossless"]}),
}


@spread(case=CASES, rows=[{"input_ids": prompt(40)}, ROWS])
def test_texts_are_those_of_whole_prompts(case: str, rows: dict[str, torch.Tensor]):
    make, options = CASES[case]
    target, kwargs = make(), GREEDY | rows
    options = {"assistant_model": noisy_copy(target), "lossy_mode": "lossless"} | options
    if case == "the prompt's states":
        options["lossy_config"] = {"seed": 0}
    whole, chunked = (target.generate(**kwargs, **options, prefill_chunk_size=size) for size in (None, 16))
    if options["lossy_mode"] == "lossless":
        assert_same_rows(chunked.sequences, target.generate(**kwargs, output_logits=True))
    assert chunked.sequences.equal(whole.sequences)


@spread(chunk=[1, 3, 5, None], name=["llama", "granitemoehybrid"])
def test_states_of_a_chunked_prompt_are_those_of_its_last_chunk(name: str, chunk: int | None):
    target = family(name)[0]
    kwargs = GREEDY | {"input_ids": prompt(10), "output_hidden_states": True, "prefill_chunk_size": chunk}
    plain, ours = assert_lossless(target, {"assistant_model": noisy_copy(target)}, **kwargs)
    for own, expected in zip(ours.hidden_states, plain.hidden_states, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_draft_s_state_is_that_at_the_end_of_all_chunks():
    draft, ids = tiny(), prompt(40)
    source = ModelSource(draft_runner(draft), keep_hidden=True)
    source.runner.chunk = 16
    source.logits(source.begin(ids))
    expected = draft(ids, output_hidden_states=True).hidden_states[-1][:, -1:]
    torch.testing.assert_close(source.hidden, expected, atol=1e-5, rtol=1e-5)


def test_what_can_not_be_split_is_refused():
    target = tiny()
    options = {"input_ids": prompt(20), "prompt_lookup_num_tokens": 3, "lossy_mode": "lossless", **GREEDY}
    for size in (0, -1, 2.5):
        with pytest.raises(LossyValueError, match=f"`prefill_chunk_size` has to be .* {size}"):
            target.generate(**options, prefill_chunk_size=size)
    bert = tiny("gpt2")
    types = {"token_type_ids": torch.zeros(1, 20).long()}
    with pytest.raises(LossyUnsupportedError, match=r"`prefill_chunk_size` 8 would split .*token_type_ids"):
        bert.generate(**options | types, prefill_chunk_size=8)
