"""The script in a sandbox, run once for a program and once for its tests; it needs only the standard library.

The tests send arguments over a socket and get results back as plain data, one JSON text a line. The processes share no
memory, so the program can't reach the comparisons and the verdict.
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
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO, NoReturn

_LONGEST_MESSAGE = 1 << 24
# How plain data are written in JSON and read again. Subclasses stand before their bases. Any other iterable arrives as
# an iterator.
_PLAIN: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "json": ((type(None), bool, float, str), lambda value: value, lambda value: value),
    "int": (int, hex, lambda text: int(text, 16)),
    "complex": (complex, lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    "fraction": (Fraction, str, Fraction),
    "decimal": (Decimal, str, Decimal),
    "bytes": ((bytes, bytearray), lambda data: bytes(data).hex(), bytes.fromhex),
    "list": (list, lambda items: [*map(encode, items)], lambda items: [*map(decode, items)]),
    "tuple": (tuple, lambda items: [*map(encode, items)], lambda items: tuple(map(decode, items))),
    "set": (set, lambda items: [*map(encode, items)], lambda items: {*map(decode, items)}),
    "frozenset": (frozenset, lambda items: [*map(encode, items)], lambda items: frozenset(map(decode, items))),
    "dict": (dict, lambda table: [*map(encode, table.items())], lambda pairs: dict(map(decode, pairs))),
    "range": (range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    "iterator": (Iterable, lambda items: [*map(encode, items)], lambda items: iter([*map(decode, items)])),
}
_MARK = "_mark_of_a_test"
_MARKED = f"try: pass\nexcept Exception as {_MARK}_error: {_MARK}({_MARK}_error)\nelse: {_MARK}(None)"
_REACHED = f"{_MARK}_reached()"
# Whoever reads results takes these for their end. As in a generator (PEP 479), they arrive as a RuntimeError.
_ENDS = (StopIteration, StopAsyncIteration)


class _TestsEnded(BaseException): ...


def encode(value: Any) -> Any:
    """Return ``value`` in JSON's types; an instance of a subclass becomes one of the built-in type."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy's
        value = value.item()
    for tag, (base, write, _) in _PLAIN.items():
        if isinstance(value, base):
            return [tag, write(value)]
    raise TypeError(f"{type(value).__name__} is no plain data")


def decode(written: Any) -> Any:
    """Undo :func:`encode`; anything a program sends becomes plain data or an error."""
    tag, content = written
    return _PLAIN[tag][2](content)


def _send(outbox: BinaryIO, message: Any) -> None:
    outbox.write(json.dumps(message).encode() + b"\n")
    outbox.flush()


def _limit_resources(cpu_seconds: int, memory_mb: int, disk_mb: int, wall_seconds: float) -> None:
    wanted = {"CPU": cpu_seconds, "FSIZE": disk_mb << 20, "NOFILE": 64, "CORE": 0, "NPROC": 0, "AS": memory_mb << 20}
    if sys.platform == "darwin":
        del wanted["AS"]  # the kernel refuses or ignores it
    for name, soft in wanted.items():
        limit = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(limit)[1] & sys.maxsize  # a lower limit stays; no limit is -1
        # One more second of processor time lets the signal, which tells the reason, come first.
        resource.setrlimit(limit, (min(soft, most), min(soft + (name == "CPU"), most)))
    signal.alarm(int(wall_seconds) + 2)  # in case the caller is killed first


def _run_program(inbox: BinaryIO, outbox: BinaryIO) -> None:
    """Execute the program, then answer calls of its function until the socket closes."""
    _send(outbox, "ready")
    job = json.loads(inbox.readline())
    solution = sys.modules["solution"] = types.ModuleType("solution")
    execute, reply = exec, _send  # the program may replace whatever it can reach by name
    try:
        execute(compile(job["program"], "solution", "exec", dont_inherit=True), vars(solution))
        function = vars(solution).get(job["entry_point"])
    except BaseException as error:
        return reply(outbox, {"raised": [type(error).__name__, ""]})
    reply(outbox, {"returned": None})
    for call in inbox:
        try:
            arguments, named = decode(json.loads(call))
            result = {"returned": encode(function(*arguments, **named))}
        except BaseException as error:
            result = {"raised": [type(error).__name__, str(error)[:1000]]}
        reply(outbox, result)


def _run_tests(job: dict[str, str], inbox: BinaryIO, outbox: BinaryIO, report: Callable[[bytes], Any]) -> None:
    """Execute the tests; report a mark for each, then in a few words how they ended."""
    if inbox.readline(_LONGEST_MESSAGE) != b'"ready"\n':
        return
    report(b"ready\n")
    failures: list[str] = []
    asserted = False

    def reached() -> None:
        nonlocal asserted
        asserted = True

    def mark(error: BaseException | None) -> None:
        reached()
        if error is not None:
            failures.append(f"raised {type(error).__name__}")
        report(b"+" if error is None else b"-")

    def end(reason: str) -> NoReturn:
        failures.insert(0, reason)  # the tests may catch what is raised here
        raise _TestsEnded

    def ask(message: Any) -> Any:
        with suppress(OSError):
            _send(outbox, message)
            if reply := inbox.readline(_LONGEST_MESSAGE):
                return json.loads(reply)
        end("ended")  # the program's process is gone

    def candidate(*arguments: Any, **named: Any) -> Any:
        try:
            call = encode([arguments, named])
        except TypeError as error:
            end(f"unsupported an argument can't be sent: {error}")
        reply = ask(call)
        if "raised" not in reply:
            return decode(reply["returned"])
        name, text = reply["raised"]
        kind = getattr(builtins, name, None)
        usual = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS)
        raise (kind if usual else RuntimeError)(text)

    tests: dict[str, Any] = {"__name__": "tests"}
    try:
        reply = ask({name: job[name] for name in ("program", "entry_point")})
        if "raised" in reply:
            end(f"raised {str(reply['raised'][0])[:100]}")
        exec(compile(job["helpers"], "helpers", "exec", dont_inherit=True), tests)
        tests |= {job["entry_point"]: candidate, _MARK: mark, f"{_MARK}_reached": reached}
        marked = ast.fix_missing_locations(_Marking().visit(ast.parse(job["tests"])))
        exec(compile(marked, "tests", "exec", dont_inherit=True), tests)
        if not asserted:
            failures.append("its tests asserted nothing")
    except BaseException as error:
        failures.append(f"raised {type(error).__name__}")
    report(b"\n" + (failures[0] if failures else "passed").encode(errors="replace"))


class _Marking(ast.NodeTransformer):
    """Make every `assert` a test of its own; one in `try` or `with` may have to fail, so it only counts as reached."""

    def visit_Try(self, node: ast.stmt) -> list[ast.stmt]:
        asserts = any(isinstance(part, ast.Assert) for part in ast.walk(node))
        return [*(ast.parse(_REACHED).body if asserts else []), node]

    visit_TryStar = visit_With = visit_AsyncWith = visit_Try

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        [attempt] = ast.parse(_MARKED).body
        attempt.body = [node]
        return attempt


def _main(channel: int, *limits: float) -> None:
    job = sys.stdin.read()  # only the tests have one
    sys.path.remove("")  # the program may write into the current folder
    channel, said = os.dup(channel), os.dup(1)
    inbox, outbox = os.fdopen(channel, "rb", closefd=False), os.fdopen(channel, "wb", closefd=False)
    _limit_resources(*limits)
    random.seed(0)  # every run of a program has to give equal answers
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    if job:
        _run_tests(json.loads(job), inbox, outbox, lambda data: os.write(said, data))
    else:
        _run_program(inbox, outbox)
    os._exit(0)


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
