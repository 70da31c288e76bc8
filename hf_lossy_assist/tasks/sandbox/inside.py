"""The script that runs in a sandbox, once for a program and once for its tests. It imports the standard library alone.

The two have no memory in common. The tests send arguments over a socket and get results back, both as plain data, so
that every comparison, and the verdict, is made where the program can't reach.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import random
import resource
import signal
import sys
import types
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LONGEST_MESSAGE = 1 << 24

# Types that JSON lacks: how their values are written, and how they are made again. A type stands before those that its
# values are instances of as well; what can only be iterated over arrives as an iterator, which equals nothing else.
_TAGGED: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "complex": (complex, lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    "fraction": (Fraction, str, Fraction),
    "decimal": (Decimal, str, Decimal),
    "bytes": ((bytes, bytearray), lambda data: bytes(data).hex(), bytes.fromhex),
    "tuple": (tuple, lambda items: _encoded(items), lambda items: tuple(_decoded(items))),
    "set": (set, lambda items: _encoded(items), lambda items: set(_decoded(items))),
    "frozenset": (frozenset, lambda items: _encoded(items), lambda items: frozenset(_decoded(items))),
    "dict": (dict, lambda table: _encoded(table.items()), lambda pairs: dict(_decoded(pairs))),
    "range": (range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    "iterator": (Iterable, lambda items: _encoded(items), lambda items: iter(_decoded(items))),
}


class ProgramEnded(BaseException):
    """The program's process is gone, and with it every further test."""


class TestsUnsupported(BaseException):
    """The tests themselves ask for something that can't be done from another process."""


def encode(value: Any) -> Any:
    """Return ``value`` as JSON has it; instances of subclasses become plain instances of the built-in type."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy's
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(1 << 53) < value < 1 << 53:
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return _encoded(value)
    for tag, (base, write, _) in _TAGGED.items():
        if isinstance(value, base):
            return {tag: write(value)}
    raise TypeError(f"{type(value).__name__} is no plain data")


def decode(written: Any) -> Any:
    """Return the value that :func:`encode` has written. Whatever a program sends, it becomes plain data or an error."""
    if isinstance(written, list):
        return _decoded(written)
    if isinstance(written, dict):
        [(tag, content)] = written.items()
        return _TAGGED[tag][2](content)
    return written


def _encoded(items: Iterable[Any]) -> list[Any]:
    return [encode(item) for item in items]


def _decoded(items: list[Any]) -> list[Any]:
    return [decode(item) for item in items]


class Channel:
    """Messages over a socket, one JSON text a line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = open(descriptor, "rb", closefd=False)  # noqa: SIM115

    def send(self, message: Any) -> None:
        """Write one message."""
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            left = left[os.write(self._descriptor, left) :]

    def receive(self) -> Any:
        """Return the next message, or None where there is none any more."""
        line = self._lines.readline(LONGEST_MESSAGE)
        return json.loads(line) if line else None


def limit_resources(cpu_seconds: int, memory_mb: int, disk_mb: int, wall_seconds: float) -> None:
    """Set the kernel's limits for this process, soft and hard alike. Lower ones that are already set stay."""
    memory, disk = memory_mb << 20, disk_mb << 20
    wanted = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),  # a signal first, which tells the reason; then the end
        resource.RLIMIT_FSIZE: (disk, disk),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
    }
    if sys.platform != "darwin":  # where the kernel refuses or ignores it
        wanted[resource.RLIMIT_AS] = (memory, memory)
    for limit, (soft, hard) in wanted.items():
        _, most = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))
    signal.alarm(int(wall_seconds) + 2)  # should the caller be killed before it can end this process


def run_program(channel: Channel) -> None:
    """Execute the program, then answer calls of its function until no more come."""
    channel.send("ready")
    job = channel.receive()
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    send, execute = channel.send, exec  # the program may replace whatever it can reach by name
    try:
        execute(compile(job["program"], "solution", "exec", dont_inherit=True), vars(solution))
        function = vars(solution).get(job["entry_point"])
    except BaseException as error:
        send({"raised": [type(error).__name__, ""]})
        return
    send({"returned": None})
    while (call := channel.receive()) is not None:
        try:
            arguments, named = decode(call)
            reply = {"returned": encode(function(*arguments, **named))}
        except BaseException as error:
            reply = {"raised": [type(error).__name__, str(error)[:1000]]}
        send(reply)


def run_tests(job: dict[str, str], channel: Channel, report: Callable[[bytes], Any]) -> None:
    """Execute the tests: report a mark for each of them, then in a few words how they ended."""
    if channel.receive() != "ready":
        return
    report(b"ready\n")
    failures: list[str] = []

    def mark(error: BaseException | None) -> None:
        if error is not None:
            failures.append(f"raised {type(error).__name__}")
        report(b"+" if error is None else b"-")

    try:
        reply = _ask(channel, {name: job[name] for name in ("program", "entry_point")})
        if "raised" in reply:
            failures.append(f"raised {str(reply['raised'][0])[:100]}")
        else:
            tests: dict[str, Any] = {"__name__": "tests"}
            exec(compile(job["helpers"], "helpers", "exec", dont_inherit=True), tests)
            tests |= {job["entry_point"]: _Candidate(channel), _MARK: mark}
            exec(compile(marked(job["tests"]), "tests", "exec", dont_inherit=True), tests)
    except ProgramEnded:
        failures.insert(0, "ended")
    except TestsUnsupported as error:
        failures.insert(0, f"unsupported {error}")
    except BaseException as error:
        failures.append(f"raised {type(error).__name__}")
    report(b"\n" + (failures[0] if failures else "passed").encode(errors="replace"))


class _Candidate:
    """The program's function, as its tests see it: arguments and results are copies."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            call = encode([arguments, named])
        except TypeError as error:
            raise TestsUnsupported(f"an argument can't be sent: {error}") from error
        reply = _ask(self._channel, call)
        if "raised" not in reply:
            return decode(reply["returned"])
        name, text = reply["raised"]
        kind = getattr(builtins, name, None)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(text)


def _ask(channel: Channel, message: Any) -> Any:
    try:
        channel.send(message)
        reply = channel.receive()
    except OSError:
        reply = None
    if reply is None:
        raise ProgramEnded
    return reply


_MARK = "_mark_of_a_test"
_MARKED = f"""
try:
    pass
except Exception as {_MARK}_error:
    {_MARK}({_MARK}_error)
else:
    {_MARK}(None)
"""


# What stands inside of these may be meant to fail.
_MAY_FAIL = (ast.Try, getattr(ast, "TryStar", ast.Try), ast.With, ast.AsyncWith)


class _Marking(ast.NodeTransformer):
    """Make every `assert` a test of its own: one that fails is reported, and the next one follows."""

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        [attempt] = ast.parse(_MARKED).body
        attempt.body = [node]
        return attempt

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node if isinstance(node, _MAY_FAIL) else super().generic_visit(node)


def marked(tests: str) -> ast.Module:
    """Return the tree of ``tests`` in which every `assert` reports how it went."""
    return ast.fix_missing_locations(_Marking().visit(ast.parse(tests)))


def main(role: str, channel: int, limits: dict[str, Any]) -> None:
    """Take the descriptors over, set the limits, and run the program or the tests, as ``role`` says."""
    job = json.load(sys.stdin) if role == "tests" else None
    sys.path.remove("")  # the current folder, into which the program may write
    inbox, outbox = os.dup(channel), os.dup(1)
    limit_resources(**limits)
    random.seed(0)  # the same program has to get the same answer each time
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if job is None:
        os.close(outbox)
        run_program(Channel(inbox))
    else:
        run_tests(job, Channel(inbox), lambda data: os.write(outbox, data))
    os._exit(0)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
