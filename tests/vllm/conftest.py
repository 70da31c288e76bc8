"""Engines of the bundled pair, each for all of its tests; `make test-vllm` runs them."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from hf_lossy_assist.pairs import BUNDLED, hub_cards

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

GAMMA = 5
BY_MODEL = {
    "method": "draft_model",
    "model": str(BUNDLED / "draft"),
    "num_speculative_tokens": GAMMA,
    "draft_sample_method": "probabilistic",
}
OPTIONS: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 128,
    # Enough for all prompts at once: vLLM on CPUs can't cut prompts of requests that have a seed of their own.
    "max_num_batched_tokens": 8192,
    "block_size": 32,
    "speculative_config": BY_MODEL,
}
HEADS = {"lossy": {"head": {"judge": str(hub_cards() / "arithmetic-judge")}}}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling small functions takes longer than the tests
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

KEPT: list[Any] = []
"""An engine that ends takes what all engines of the process share with it."""


def start(lossy: dict[str, Any] | None = HEADS, **changes: Any) -> Any:
    """Return an engine in this process."""
    os.environ |= {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    sys.modules.pop("llvmlite.binding.ffi", None)  # n-gram drafters load it, and no engine could start after one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM itself is to replace
        from vllm import LLM

        options = {"model": str(BUNDLED / "target"), **OPTIONS, **changes}
        engine = LLM(**options, additional_config=lossy or {})
    KEPT.append(engine)
    return engine


@pytest.fixture(scope="session")
def engine():
    return start()


@pytest.fixture(scope="session")
def cramped():
    """Too few blocks for its requests, which it reads in pieces."""
    return start(num_gpu_blocks_override=7, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=160)


@pytest.fixture(scope="session")
def plain():
    """An engine without lossy fields."""
    return start(None)


@pytest.fixture(scope="session")
def prompt(pair) -> list[int]:
    """A text whose next token is nearly certain, and the one after it is not."""
    from tests.vllm.asking import prompts_of
    from tests.vllm.laws import TEMPERATURE

    best, found = 0.0, []
    for start in prompts_of(pair, 20):
        with torch.no_grad():
            text = pair.target.generate(torch.tensor([start]), do_sample=False, max_new_tokens=40)[0]
            p = (pair.target(text[None]).logits[0].double() / TEMPERATURE).softmax(-1)
        sure = p[:-1].gather(1, text[1:, None])[:, 0] > 0.7
        entropy = torch.where(sure, torch.special.entr(p).sum(-1)[1:], 0.0)
        if entropy.max() > best:
            best, found = float(entropy.max()), text[: int(entropy.argmax()) + 1].tolist()
    return found
