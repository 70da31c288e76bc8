"""A sandbox for untrusted programs: a bad one costs a failed answer and nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Annotated

from ...errors import LossyUnsupportedError, warn
from ...values import ONE_OR_MORE, POSITIVE, Checked, Flag
from . import isolation

_GRACE_SECONDS = 1.0  # for a process to end, or a folder to be deleted
_INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class ProgramReport:
    """The results of a program's tests."""

    passed: bool  # whether all tests passed
    marks: str  # "+" for each test that passed, "-" for each that failed, in the order they ran
    reason: str  # the first failure in a few words, or "passed"


@dataclass(frozen=True)
class Sandbox(Checked):
    """Runs untrusted programs; SECURITY.md lists the promises and their limits.

    A program and its tests run in two processes, isolated by `bwrap`. The tests call the program's function over a
    socket with copies of plain data (numbers, texts, bytes, lists, tuples, sets, dictionaries, ranges, iterators), so
    the program can't reach the verdict. A function that returns other data fails.
    """

    cpu_seconds: Annotated[int, ONE_OR_MORE] = 3  # processor time of each process
    wall_seconds: Annotated[float, POSITIVE] = 15.0  # clock time; the caller waits at most two seconds more
    memory_mb: Annotated[int, ONE_OR_MORE] = 1024  # MiB of address space of each process (macOS has no such limit)
    disk_mb: Annotated[int, ONE_OR_MORE] = 16  # MiB of files (without isolation: of one file)
    unsafe_no_isolation: Flag = False  # run programs with all of this user's rights, and warn each time

    def __post_init__(self) -> None:
        super().__post_init__()
        if importlib.util.find_spec("resource") is None:
            raise LossyUnsupportedError("running programs needs the limits of a Unix system (the module `resource`)")
        if self.unsafe_no_isolation:
            warn("`unsafe_no_isolation` is set: programs written by models can read, change and send whatever you can")
        elif (reason := isolation.unavailable()) is not None:
            raise LossyUnsupportedError(
                f"programs can't be isolated here: {reason}. Install `bubblewrap` where user namespaces are allowed, "
                "or set `unsafe_no_isolation` to run programs with all of your own rights"
            )

    def run(self, program: str, entry_point: str, tests: str, helpers: str = "") -> ProgramReport:
        """Run ``program``, untrusted Python source, and ``tests`` against its function ``entry_point``.

        Each `assert` outside of `try` and `with` is a test of its own. The tests pass if they assert something, none
        fails, and nothing else is raised. ``helpers`` are trusted source that runs before the tests. A bad program only
        fails; an error means that the processes could not be set up.

        Examples
        --------
        >>> sandbox = Sandbox(unsafe_no_isolation=True)  # where `bwrap` is installed: Sandbox()
        >>> sandbox.run("def double(x): return x + 2", "double", "assert double(2) == 4; assert double(3) == 6")
        ProgramReport(passed=False, marks='+-', reason='raised AssertionError')
        """
        job = json.dumps({"program": program, "entry_point": entry_point, "tests": tests, "helpers": helpers}).encode()
        limits = self.cpu_seconds, self.memory_mb, self.disk_mb, self.wall_seconds
        with ExitStack() as stack:
            start = partial(isolation.start_isolated, disk_mb=self.disk_mb)
            if self.unsafe_no_isolation:
                folder = tempfile.mkdtemp(prefix="lossy-")
                stack.callback(_delete, folder)
                start = partial(isolation.start, folder=folder, cwd=folder)
            ends, started = socket.socketpair(), []
            with ends[0], ends[1]:
                for end, pipe in zip(ends, (DEVNULL, PIPE), strict=True):
                    command = [sys.executable, "-s", "-c", _INSIDE.read_text(), json.dumps([end.fileno(), *limits])]
                    started.append(start(command, passed=(end.fileno(),), stdin=pipe, stdout=pipe, stderr=pipe))
                    stack.callback(_end, started[-1])
            process, checks = started
            try:
                said, errors = checks.communicate(job, self.wall_seconds)
            except TimeoutExpired:
                _end(checks)
                return _report(*checks.communicate(), None)
            with suppress(TimeoutExpired):  # the program ends with its tests; its status says why
                process.wait(_GRACE_SECONDS)
            _end(process)
            return _report(said, errors, process.returncode)


def _end(process: Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _delete(folder: str) -> None:
    deletion = Popen(["rm", "-rf", folder], stderr=DEVNULL, start_new_session=True)
    with suppress(TimeoutExpired):
        deletion.wait(_GRACE_SECONDS)  # a program may have filled the folder


def _report(said: bytes, errors: bytes, status: int | None) -> ProgramReport:
    """Return the report; ``status`` is the program's exit status, None after a timeout."""
    ready, _, rest = said.decode(errors="replace").partition("\n")
    if ready != "ready":
        trouble = errors.decode(errors="replace").strip().rpartition("\n")[2] or "it took too long to start"
        raise LossyUnsupportedError(f"a program can't be run in a sandbox here: {trouble}")
    marks, _, reason = rest.partition("\n")
    if reason.startswith("unsupported "):
        raise LossyUnsupportedError(f"these tests can't be run: {reason.removeprefix('unsupported ')}")
    if status is None:
        reason = "ran out of time"
    elif reason == "ended":
        number = -status if status < 0 else status - 128  # `bwrap` adds 128 to a signal's number
        reason = f"was ended by signal {number}" if number > 0 else "left before its tests ended"
        reason = "ran out of processor time" if number == signal.SIGXCPU else reason
    return ProgramReport(reason == "passed", marks, reason or "its tests ended early")
