"""The parts of the trial: each yields seeded cases, by the generators that the tests use."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hf_lossy_assist import LossyError, LossyValueError
from hf_lossy_assist.tasks.sandbox import Sandbox, isolation
from hf_lossy_assist.training.labelling import load_mined
from tests.tasks.sandbox.programs import CHEATS, ENDLESS, assert_no_cheat
from tests.training.parts import labelling, run, tiny_parts

from .breaking import interruptions
from .calls import Call
from .files import files
from .junk import junk
from .laws import laws

Case = tuple[str, Callable[[], str]]
"""A name, and what returns the outcome or raises."""


def calls(seed: int, count: int) -> Iterator[Case]:
    """Calls of ``generate()``; the oracle is plain ``generate()``."""
    for number in range(count):
        call = Call.draw(seed, number)
        yield f"{call!r}", call.check


def kills(seed: int, count: int) -> Iterator[Case]:
    """Mining that is killed at any moment: what was finished stays as it is, and the rest is mined once."""
    generator = random.Random(seed)
    parts = tiny_parts(seed=3)
    prompts = 6
    with tempfile.TemporaryDirectory() as name:
        run(Path(name) / "whole", labelling(parts, prompts))
        whole = _mined(Path(name) / "whole")

        def check(folder: Path, seconds: list[float]) -> str:
            killed = 0
            for wait in seconds:
                killed += _run_and_kill(lambda: run(folder, labelling(parts, prompts)), wait)
                with contextlib.suppress(LossyValueError):  # nothing is there yet
                    rows = _mined(folder)
                    assert all(whole[prompt] == row for prompt, row in rows.items()), "a row has changed"
            run(folder, labelling(parts, prompts))
            assert _mined(folder) == whole
            return "killed, whole after it" if killed else "ended first"

        for number in range(count):
            seconds = [generator.uniform(0.05, 1.5) for _ in range(generator.randint(1, 3))]
            yield f"{seed}.{number}", lambda n=number, s=seconds: check(Path(name) / str(n), s)


def _mined(folder: Path) -> dict[int, Any]:
    mined = load_mined(folder)
    labels = Counter(mined.tokens["prompt_id"])
    assert all(labels[row.id] == row.columns["mismatches"] for row in mined.prompts)
    responses = ("first_response", "last_response")
    rows = {row.id: (row.status, *(row.columns[name] for name in responses)) for row in mined.prompts}
    assert len(rows) == len(mined.prompts)
    return rows


def _run_and_kill(work: Callable[[], Any], seconds: float) -> bool:
    """Run ``work`` in a process of its own, and kill that after some time; tell whether it was still at work."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            torch.set_num_threads(1)
            work()
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def sandbox(seed: int, count: int) -> Iterator[Case]:
    """Programs that cheat or never end, isolated where that can be had, and else refused; and without, on demand."""
    generator = random.Random(seed)
    programs = {**CHEATS, **{f"endless: {program[:30]}": program for program in ENDLESS}}
    limits = {"cpu_seconds": 1, "wall_seconds": 3.0, "memory_mb": 256, "disk_mb": 4}
    user = "root" if os.geteuid() == 0 else "a user"

    def check(program: str, unsafe: bool) -> str:
        if not unsafe and isolation.unavailable() is not None:
            try:
                Sandbox(**limits)
            except LossyError:
                return f"refused: no isolation, {user}"
            raise AssertionError("not refused")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            box = Sandbox(**limits, unsafe_no_isolation=unsafe)
        started = time.monotonic()
        assert_no_cheat(box, program)
        assert time.monotonic() - started < 3 + 2 + 20, "held the caller"
        return f"not passed, {'without isolation' if unsafe else 'isolated'}, {user}"

    for number in range(count):
        key, unsafe = generator.choice(sorted(programs)), generator.random() < 0.5
        yield f"{seed}.{number} {key}", lambda key=key, unsafe=unsafe: check(programs[key], unsafe)


PARTS: Mapping[str, tuple[Callable[[int, int], Iterator[Case]], int]] = {
    "calls": (calls, 5000),
    "junk": (junk, 1000),
    "laws": (laws, 3000),
    "interruptions": (interruptions, 1000),
    "files": (files, 2800),
    "kills": (kills, 100),
    "sandbox": (sandbox, 200),
}
"""From a part's name to its cases, and how many a whole trial has."""
