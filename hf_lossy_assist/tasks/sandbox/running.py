"""The near side of the sandbox: start a jail, wait for what came of it."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import LossyUnsupportedError, LossyValueError

# `jail` is found in this folder, which is off the path again before any program runs.
_START = "import sys; sys.path[0] = {folder!r}; from jail import supervisor; del sys.path[0]; supervisor.main()"
_GRACE_SECONDS = 20.0


@dataclass(frozen=True)
class Limits:
    """What a program may use up.

    Attributes
    ----------
    cpu_seconds
        Seconds of processor time.
    wall_seconds
        Seconds by the clock, for programs that wait. Rather long, since a busy machine must not fail a right answer.
    memory_mb
        MiB of address space (not enforced on macOS, whose kernel has no such limit).
    disk_mb
        MiB of files.

    Examples
    --------
    >>> Limits(cpu_seconds=1).wall_seconds
    15.0
    """

    cpu_seconds: int = 3
    wall_seconds: float = 15.0
    memory_mb: int = 1024
    disk_mb: int = 16

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "memory_mb", "disk_mb"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise LossyValueError(f"`{name}` has to be a whole number > 0, but is {value!r}")
        if not isinstance(self.wall_seconds, (int, float)) or not 0 < self.wall_seconds < math.inf:
            raise LossyValueError(f"`wall_seconds` has to be a number > 0, but is {self.wall_seconds!r}")


@dataclass(frozen=True)
class Outcome:
    """What came of a program: whether its tests passed, and in a few words why not."""

    passed: bool
    reason: str


def run_tests(program: str, tests: str, limits: Limits | None = None, *, isolate: bool | None = None) -> Outcome:
    """Run ``program`` and then ``tests``, in the same namespace, in a process of their own.

    Guaranteed by the kernel, on Linux and macOS: the limits on processor time, clock and file size, no further
    processes or threads (except where root must stay root, because the standard library is readable for nobody else),
    no access to standard input or to the caller's environment variables, and an end of the whole process group. On
    Linux also the limit on memory, and an end of every process that was started, whether its caller lives on or not.

    Where the kernel allows namespaces (``isolate``), it also guarantees that there is no network, that every file is
    read-only but those of an empty temporary folder of limited size, and that no other process can be seen or
    signalled. Everywhere else an audit hook refuses sockets, processes, signals, C libraries and changes to files
    outside the temporary folder; that stops what models write, but not a program made to get round it. Nothing keeps
    a program from *reading* files, and one made to cheat can find out how to report success: do not run what
    somebody wrote to attack you without a virtual machine around it.

    Parameters
    ----------
    program, tests
        Python source. The tests pass if both run to their end without an exception.
    limits
        See :class:`Limits`.
    isolate
        Whether to use namespaces; by default, where :func:`kernel_isolation` says that they work.

    Raises
    ------
    LossyUnsupportedError
        If there is no way to limit a process here (Windows), or if the process could not be set up. A program that
        does something bad raises nothing: it has failed.

    Examples
    --------
    >>> run_tests("def double(x): return 2 * x", "assert double(4) == 8")
    Outcome(passed=True, reason='passed')
    >>> run_tests("import os; os._exit(0)", "")
    Outcome(passed=False, reason='left before its tests ended')
    """
    require_limits()
    isolate = kernel_isolation() if isolate is None else isolate
    report = _run(program, tests, limits or Limits(), isolate)
    if "broken" in report:
        raise LossyUnsupportedError(f"a program can't be run in a sandbox here: {report['broken']}")
    return Outcome(**report)


def require_limits() -> None:
    """Refuse a system that can't limit what a process uses."""
    if importlib.util.find_spec("resource") is None:
        raise LossyUnsupportedError(
            f"running programs needs the limits of a Unix system (the module `resource`), which {sys.platform} lacks"
        )


@functools.cache
def kernel_isolation() -> bool:
    """Tell whether this kernel lets this user put a program into namespaces of its own (tried once)."""
    return sys.platform == "linux" and "broken" not in _run("", "", Limits(), True)


def _run(program: str, tests: str, limits: Limits, isolate: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="lossy-", ignore_cleanup_errors=True) as workdir:
        job = {"program": program, "tests": tests, "workdir": workdir, "isolate": isolate, **asdict(limits)}
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(folder=str(Path(__file__).parent))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workdir,
            env=_environment(workdir),
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(json.dumps(job).encode(), limits.wall_seconds + _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"passed": False, "reason": "stopped its supervisor"}
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.communicate()
    if output:
        return json.loads(output)
    if process.returncode == -signal.SIGKILL:
        return {"passed": False, "reason": "killed its supervisor"}
    last_words = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return {"broken": last_words or f"the supervisor ended with {process.returncode}"}


def _environment(workdir: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    python = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    return {"PATH": os.defpath, "HOME": workdir, "TMPDIR": workdir, "LANG": "C.UTF-8", **kept, **alone, **python}
