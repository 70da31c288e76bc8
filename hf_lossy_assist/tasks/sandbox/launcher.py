"""The caller's side of the sandbox: start a program and its tests, wait, and report which tests passed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ...errors import LossyUnsupportedError, LossyValueError, warn
from . import isolation

_GRACE_SECONDS = 1.0  # for the tests to say what had passed, once the program was stopped
_MOST_REPORTED = 1 << 20
_INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class ProgramReport:
    """The results of a program's tests."""

    passed: bool  # whether all tests passed
    # "+" for each test that passed and "-" for each that failed, in the order they ran; shorter if the program ended
    # first.
    marks: str
    reason: str  # in a few words, what went wrong first ("passed" if nothing did)


@dataclass(frozen=True)
class Sandbox:
    """A place to run programs that nobody has read.

    A program runs in a process without the caller's environment variables, and its tests in another one, which calls
    the program's function through a socket: arguments and results are copied as plain data (numbers, texts, bytes,
    lists, tuples, sets, dictionaries, ranges; iterators are run to their end), so the asserts and the verdict are out
    of the program's reach. What a function does to its arguments the tests don't see. A function that returns anything
    else has failed; tests that pass anything else can't be run.

    Both processes are isolated by `bwrap`, with a filter of system calls: they see no files but those of the Python
    installation and the system's libraries, can write into an empty folder in memory alone, and have no network, no
    way to start processes or threads, and no other process to see. Without that, programs are refused unless
    ``unsafe_no_isolation`` is set. What is promised and what is not is in SECURITY.md.

    Attributes
    ----------
    cpu_seconds
        Seconds of processor time, for each of the two processes.
    wall_seconds
        Seconds by the clock, for programs that wait; the caller is held for some two seconds longer at most. Rather
        long, since a busy machine must not fail a right answer.
    memory_mb
        MiB of address space, for each of the two (not enforced on macOS, whose kernel has no such limit).
    disk_mb
        MiB of files (without isolation: of any one file).
    unsafe_no_isolation
        Run programs as ordinary processes of this user, who can then read, change and send what the user can. Only for
        programs that you would start yourself; a warning says so each time.

    Raises
    ------
    LossyValueError
        If a limit is no number > 0.
    LossyUnsupportedError
        Where a program can't be isolated, or the system has no limits for processes (Windows).

    Examples
    --------
    >>> Sandbox(cpu_seconds=1, unsafe_no_isolation=True).wall_seconds  # without the last one where `bwrap` is installed
    15.0
    """

    cpu_seconds: int = 3
    wall_seconds: float = 15.0
    memory_mb: int = 1024
    disk_mb: int = 16
    unsafe_no_isolation: bool = False

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "memory_mb", "disk_mb"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise LossyValueError(f"`{name}` has to be a whole number > 0, but is {value!r}")
        if not isinstance(self.wall_seconds, (int, float)) or not 0 < self.wall_seconds < math.inf:
            raise LossyValueError(f"`wall_seconds` has to be a number > 0, but is {self.wall_seconds!r}")
        if not isinstance(self.unsafe_no_isolation, bool):
            raise LossyValueError(f"`unsafe_no_isolation` has to be a bool, but is {self.unsafe_no_isolation!r}")
        if importlib.util.find_spec("resource") is None:
            raise LossyUnsupportedError(
                f"running programs needs the limits of a Unix system (the module `resource`), which {sys.platform} "
                "lacks"
            )
        if self.unsafe_no_isolation:
            warn("`unsafe_no_isolation` is set: programs written by models can read, change and send whatever you can")
        elif (reason := isolation.unavailable()) is not None:
            raise LossyUnsupportedError(
                f"programs can't be isolated here: {reason}. Install `bubblewrap` where user namespaces are allowed, "
                "or set `unsafe_no_isolation` to run programs with all of your own rights"
            )

    def run(self, program: str, entry_point: str, tests: str, helpers: str = "") -> ProgramReport:
        """Run ``program``, and ``tests`` against the function that it defines.

        Parameters
        ----------
        program
            Python source that nobody has read.
        entry_point
            The name of the function; the tests know it by the same name.
        tests
            Python source. Each `assert` that runs (outside of `try` and `with`) is a test of its own; the tests pass
            if none of them fails and nothing else is raised.
        helpers
            Python source of the tests' author, run before the tests in their process.

        Raises
        ------
        LossyUnsupportedError
            If the processes could not be set up, or the tests pass an argument that is no plain data. A program that
            does something bad raises nothing: it has failed.

        Examples
        --------
        >>> sandbox = Sandbox(unsafe_no_isolation=True)  # where `bwrap` is installed: Sandbox()
        >>> sandbox.run("def double(x): return x + 2", "double", "assert double(2) == 4; assert double(3) == 6")
        ProgramReport(passed=False, marks='+-', reason='raised AssertionError')
        """
        job = json.dumps({"program": program, "entry_point": entry_point, "tests": tests, "helpers": helpers})
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(tempfile.TemporaryFile())
            request = stack.enter_context(tempfile.TemporaryFile())
            request.write(job.encode())
            request.seek(0)
            folder = stack.enter_context(_folder()) if self.unsafe_no_isolation else isolation.FOLDER
            ends = socket.socketpair()
            with ends[0], ends[1]:
                started = [
                    stack.enter_context(self._process(role, folder, end.fileno(), stdin, stdout, errors))
                    for role, end, stdin, stdout in (
                        ("program", ends[0], subprocess.DEVNULL, subprocess.DEVNULL),
                        ("tests", ends[1], request, subprocess.PIPE),
                    )
                ]
            said, in_time = self._listen(*started)
            if said.endswith(b"\nended"):  # then the program's status, which says why, is there in a moment
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started[0].wait(_GRACE_SECONDS)
            for process in started:
                _end(process)
            errors.seek(0)
            return _report(said, in_time, started[0].returncode, errors.read().decode(errors="replace"))

    @contextlib.contextmanager
    def _process(
        self, role: str, folder: str, channel: int, stdin: IO[bytes] | int, stdout: int, stderr: IO[bytes]
    ) -> Iterator[subprocess.Popen[bytes]]:
        limits = asdict(self)
        del limits["unsafe_no_isolation"]
        command = [sys.executable, "-s", "-c", _INSIDE.read_text(), json.dumps([role, channel, limits])]
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        if self.unsafe_no_isolation:
            process = isolation.start(command, folder, (channel,), cwd=folder, **streams)
        else:
            process = isolation.start_isolated(command, self.disk_mb, (channel,), **streams)
        try:
            yield process
        finally:
            _end(process)

    def _listen(self, program: subprocess.Popen[bytes], tests: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        """Collect what the tests report, and stop the program when its time is up; return whether it was in time."""
        said, in_time = b"", True
        deadline = time.monotonic() + self.wall_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(tests.stdout, selectors.EVENT_READ)
            while len(said) < _MOST_REPORTED:
                if selector.select(max(0.0, deadline - time.monotonic())):
                    more = os.read(tests.stdout.fileno(), 1 << 16)
                    if not more:
                        break
                    said += more
                elif in_time:
                    in_time, deadline = False, deadline + _GRACE_SECONDS
                    _end(program)
                else:
                    break
        return said, in_time


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Make a temporary folder, and wait a moment only for it to be deleted: a program may have filled it."""
    folder = tempfile.mkdtemp(prefix="lossy-")
    try:
        yield folder
    finally:
        deletion = subprocess.Popen(["rm", "-rf", folder], stderr=subprocess.DEVNULL, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            deletion.wait(_GRACE_SECONDS)


def _report(said: bytes, in_time: bool, status: int, errors: str) -> ProgramReport:
    ready, _, rest = said.decode(errors="replace").partition("\n")
    if ready != "ready":
        trouble = errors.strip().rpartition("\n")[2] or ("no error" if in_time else "it took too long to start")
        raise LossyUnsupportedError(f"a program can't be run in a sandbox here: {trouble}")
    marks, _, reason = rest.partition("\n")
    if reason.startswith("unsupported "):
        raise LossyUnsupportedError(f"these tests can't be run: {reason.removeprefix('unsupported ')}")
    if not in_time:
        reason = "ran out of time"
    elif reason in ("ended", ""):
        reason = _ending(status) if reason else "its tests ended early"
    return ProgramReport(reason == "passed", marks, reason)


def _ending(status: int) -> str:
    # `bwrap` ends with 128 + N when its program was ended by the signal N.
    number = -status if status < 0 else status - 128
    if number == signal.SIGXCPU:
        return "ran out of processor time"
    return f"was ended by signal {number}" if number > 0 else "left before its tests ended"
