"""The outer process: it sets the jail up, watches the clock, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from . import runner

LINUX = sys.platform == "linux"
if LINUX:
    from . import kernel

_MOST_BYTES = 4096  # of what comes out of the jail; a program that finds the way out could write for ever


def main() -> None:
    """Read one job from standard input, run it, and write one line: what came of it."""
    if LINUX:
        kernel.die_with_parent()
    job = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.chdir(job["workdir"])
    try:
        outcome = _supervise(job)
    except OSError as error:
        outcome = {"broken": str(error)}
    report.write(json.dumps(outcome))
    report.close()


def _supervise(job: dict[str, Any]) -> dict[str, Any]:
    if LINUX:
        kernel.enter_namespaces() if job["isolate"] else kernel.adopt_orphans()
    nonce = os.urandom(16).hex().encode()
    inbox, outbox = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inbox)  # so that who survives this process finds nobody to talk to, and ends
        _guarded(_enter_jail, job, nonce, outbox)
    os.close(outbox)
    said, in_time = _listen(inbox, time.monotonic() + job["wall_seconds"])
    # With namespaces the child is the first process of its own, and all others there die with it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if LINUX and not job["isolate"]:
        _end_orphans()
    return _outcome(said, nonce, in_time, status)


def _guarded(function: Any, *arguments: Any) -> NoReturn:
    """Call ``function`` in a forked process, which must never come back into the code that forked it."""
    try:
        function(*arguments)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(arguments[-1], f"broken {error}".encode())
    finally:
        os._exit(1)


def _enter_jail(job: dict[str, Any], nonce: bytes, channel: int) -> None:
    if job["isolate"]:
        kernel.die_with_parent()
        kernel.protect_files(job["workdir"], job["disk_mb"])
        program = os.fork()
        if program != 0:
            _wait_as_init(program, channel)
    # Also the way into a folder that has just been covered by an empty one.
    os.chdir(job["workdir"])
    if LINUX:
        kernel.drop_privileges(job["workdir"])
        kernel.die_with_parent()
    os.dup2(0, 2)
    os.dup2(channel, 3)
    os.closerange(4, 1024)
    runner.limit_resources(job)
    runner.become(job, nonce, 3)


def _wait_as_init(program: int, channel: int) -> NoReturn:
    """Reap every process of the namespace until the program ends; leaving then kills the others."""
    while True:
        ended, status = os.wait()
        if ended == program:
            os.write(channel, b"\nended %d" % status)
            os._exit(0)


def _listen(inbox: int, deadline: float) -> tuple[bytes, bool]:
    """Collect what comes until the other side ends or the time is up; return it and whether it was in time."""
    said = b""
    while len(said) < _MOST_BYTES:
        ready, _, _ = select.select([inbox], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return said, False
        more = os.read(inbox, _MOST_BYTES)
        if not more:
            break
        said += more
    return said, True


def _end_orphans() -> None:
    """Kill whatever has become a child of this process, until nothing is left."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat") as stat:
            _, parent, *_ = stat.read().rpartition(")")[2].split()
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


def _outcome(said: bytes, nonce: bytes, in_time: bool, status: int) -> dict[str, Any]:
    if not said.startswith(runner.READY):
        return {"broken": said.removeprefix(b"broken ").decode(errors="replace") or f"ended early, status {status}"}
    words = said[len(runner.READY) :]
    if words.startswith(nonce):
        return {"passed": True, "reason": "passed"}
    if not in_time:
        return {"passed": False, "reason": "ran out of time"}
    if words.startswith(b"failed "):
        name, _, _ = words.removeprefix(b"failed ").partition(b"\n")
        return {"passed": False, "reason": "raised " + name.decode(errors="replace")}
    _, _, inner = words.rpartition(b"\nended ")
    return {"passed": False, "reason": _describe(int(inner) if inner.isdigit() else status)}


def _describe(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return "left before its tests ended"
    if os.WTERMSIG(status) == signal.SIGXCPU:
        return "ran out of processor time"
    return f"was ended by signal {os.WTERMSIG(status)}"
