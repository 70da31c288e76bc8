"""Compiled forwards on static caches give the texts of the eager loop."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import CompileConfig, StaticCache

from hf_lossy_assist.compat.caches import CACHE
from tests.nightly import nightly
from tests.parity import assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny

NEW = 24
CASES = {
    "lossless": {},
    "lossless, drawn": {"do_sample": True, "temperature": 0.9},
    "lossless, drawn as a whole": {"do_sample": True, "top_k": 0, "num_assistant_tokens": 4},
    "dropmatch, drawn": {"lossy_mode": "dropmatch", "do_sample": True},
    "topk": {"lossy_mode": "topk", "repetition_penalty": 1.3},
    "ensemble, drawn": {"lossy_mode": "ensemble", "do_sample": True},
}


@pytest.fixture(scope="module")
def llamas():
    target = tiny("llama")
    return target, noisy_copy(target)


def both(target, draft, ids=None, config=None, backend="eager", **kwargs):
    """Return the eager output and the compiled one, by a backend that runs the traced graphs as they are."""
    kwargs = {"lossy_mode": "lossless", "do_sample": False, "eos_token_id": None, "max_new_tokens": NEW} | kwargs
    kwargs = {"input_ids": prompt() if ids is None else ids} | kwargs
    settings = {"seed": 3} | (config or {})
    return [
        target.generate(
            assistant_model=draft,
            lossy_config=settings | more,
            compile_config=CompileConfig(backend=backend),
            **kwargs,
        )
        for more in ({}, {"compile": True})
    ]


# What else follows from static caches is tested with recorded graphs, by whose runners compiled forwards run, too.
@pytest.mark.parametrize(
    "case", nightly(CASES, but=("lossless", "lossless, drawn as a whole", "dropmatch, drawn", "topk"))
)
def test_equal_to_the_eager_loop(llamas, case):
    inputs = {} if case in ("lossless", "ensemble, drawn") else padded()
    eager, compiled = both(*llamas, **CASES[case] | inputs)
    assert torch.equal(eager, compiled)


def test_scores_logits_and_streamer(llamas):
    eager, compiled = both(*llamas, return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert torch.equal(eager.sequences, compiled.sequences)
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(getattr(eager, name)), torch.stack(getattr(compiled, name)))


@pytest.mark.parametrize(
    ("more", "eos"),
    [({"cache_implementation": "static"}, [5, 9, 20, 30, 40]), ({"lossy_config": {"compile": True}}, None)],
)
def test_rows_of_a_batch_end_apart(llamas, more, eos):
    greedy = padded() | {"do_sample": False, "eos_token_id": eos, "max_new_tokens": NEW, "output_logits": True}
    plain = llamas[0].generate(**greedy, return_dict_in_generate=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has an effect
        ours = llamas[0].generate(
            **greedy, return_dict_in_generate=True, assistant_model=llamas[1], lossy_mode="lossless",
            compile_config=CompileConfig(backend="eager"), **more,
        )  # fmt: skip
    assert_same_rows(ours.sequences, plain)
    assert getattr(ours, CACHE) is None
    for a, b in zip(ours.logits, plain.logits, strict=True):
        for row in range(len(a)):
            if eos is None:
                torch.testing.assert_close(a[row], b[row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("compiling", [False, True])
def test_what_a_cache_of_the_caller_holds_is_not_compiled_over(compiling: bool):
    target, ids = tiny(), prompt(9)
    greedy = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 20}
    plain = target.generate(ids, **greedy)
    cache = StaticCache(config=target.config, max_cache_len=64)
    with torch.no_grad():
        target(input_ids=ids[:, :5], **{CACHE: cache}, use_cache=True)
    ours = target.generate(
        ids, **greedy, **{CACHE: cache}, assistant_model=noisy_copy(target, 0.02), lossy_mode="lossless",
        lossy_config={"compile": compiling}, compile_config=CompileConfig(backend="eager"),
    )  # fmt: skip
    assert torch.equal(ours, plain)
