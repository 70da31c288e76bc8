"""vLLM's model runner V2 on a CPU, in a process of its own: Triton interprets its kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_ENGINE: list[Any] = []


def begin() -> None:
    """Let vLLM find a driver of Triton for CPUs, and start the bundled pair's engine."""
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from triton.backends import backends
    from triton.runtime.interpreter import InterpreterBuilder

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    InterpreterBuilder.create_masked_load = _with_bools(InterpreterBuilder.create_masked_load, 1)
    InterpreterBuilder.create_masked_store = _with_bools(InterpreterBuilder.create_masked_store, 2)
    from tests.vllm.conftest import start

    _ENGINE.append(start(num_gpu_blocks_override=256))


def _with_bools(access: Callable, at: int) -> Callable:
    """Make a mask of integers, which the interpreter refuses, one of bools."""

    def call(builder: Any, *args: Any, **kwargs: Any) -> Any:
        args[at].data = args[at].data.astype(bool)
        return access(builder, *args, **kwargs)

    return call


def texts(prompts: list[list[int]], params: list[Any]) -> list[list[int]]:
    from tests.vllm import asking

    return asking.texts(_ENGINE[0], prompts, *params)
