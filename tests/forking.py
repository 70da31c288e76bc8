"""Processes that begin as copies of this one, so that they need not import anything again."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from accelerate.state import AcceleratorState


def forked(work: Callable[..., Any], *arguments: Any, **environment: str) -> multiprocessing.Process:
    """Start a process that does some work with other variables in its environment; what it raises is its exit code."""

    def run() -> None:
        os.environ.update(environment)
        torch.set_num_threads(1)
        AcceleratorState._reset_state(reset_partial_state=True)  # what this process is to others is asked again
        work(*arguments)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def done_by_two(work: Callable[..., Any], *arguments: Any) -> None:
    """Let two processes that know of each other, as a launcher's do, work side by side to their ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    group |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    processes = [forked(work, *arguments, **group, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    for process in processes:
        process.join(300)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
