"""Processes that begin as a copy of this one, so that they load nothing anew."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

LIMIT = 300.0


def fork(function: Callable[..., Any], *arguments: Any, out: str | Path = os.devnull, **variables: Any) -> BaseProcess:
    """Start ``function`` in a process of its own that prints to ``out``, and has more variables in its environment."""

    def body() -> None:
        torch.set_num_threads(1)  # makes a new pool of threads; threads that do it at once stumble over each other
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        os.environ.update({"CUDA_VISIBLE_DEVICES": ""} | {name: str(value) for name, value in variables.items()})
        with open(out, "w") as file, contextlib.redirect_stdout(file):
            function(*arguments)

    process = multiprocessing.get_context("fork").Process(target=body, daemon=True)
    process.start()
    return process


def fork_ranks(function: Callable[..., Any], *arguments: Any, folder: Path) -> list[str]:
    """Run ``function`` in two processes with the environment that torchrun gives them; return what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1], "WORLD_SIZE": 2}
    outs = [folder / f"printed-{rank}" for rank in range(2)]
    both = [
        fork(function, *arguments, out=out, RANK=rank, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, **place)
        for rank, out in enumerate(outs)
    ]
    assert [ended(process) for process in both] == [0, 0]
    return [out.read_text() for out in outs]


def fork_module(name: str, *arguments: Any, folder: Path) -> list[str]:
    """Run a module as a program in two such processes."""

    def program() -> None:
        sys.argv = [name, *map(str, arguments)]
        runpy.run_module(name, run_name="__main__")

    return fork_ranks(program, folder=folder)


def ended(process: BaseProcess) -> int | None:
    """Wait for the end of a process; return its exit status."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"the process did not end within {LIMIT:.0f} s")
    return process.exitcode


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call in another thread, for which locks are held as for another process."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def leave() -> NoReturn:
    """End at once: torch aborts a process whose interpreter ends while gloo's threads still free tensors.

    See https://github.com/pytorch/pytorch/issues/190489; neither a barrier nor destroying the group prevents it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
