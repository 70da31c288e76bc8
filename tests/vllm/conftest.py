"""One engine of the bundled pair for all tests; `make test-vllm` runs them."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec

import pytest

from hf_lossy_assist.pairs.pair import bundled_folder

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

GAMMA = 5


@pytest.fixture(scope="session")
def engine():
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    root = bundled_folder("arithmetic")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM itself is to replace
        from vllm import LLM

        return LLM(
            str(root / "target"),
            enforce_eager=True,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            speculative_config={
                "method": "draft_model",
                "model": str(root / "draft"),
                "num_speculative_tokens": GAMMA,
                "draft_sample_method": "probabilistic",
            },
            additional_config={"lossy": {"head": {"judge": str(root / "judge")}}},
        )
