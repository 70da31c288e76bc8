"""Which tests of a program pass, and what costs the answer, with and without isolation."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.tasks import sandbox as module
from hf_lossy_assist.tasks.sandbox import ProgramReport, Sandbox, isolation
from tests.tasks.sandbox.programs import CHEATS, ENDLESS, assert_no_cheat

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system"),
    pytest.mark.filterwarnings("ignore:`unsafe_no_isolation` is set"),
]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PASSED = ProgramReport(True, "+", "passed")
IDENTITY = "def f(x): return x\n"


def runs(sandbox: Sandbox, program: str) -> ProgramReport:
    """Run statements, and one test that passes if they come to their end."""
    return sandbox.run(f"{program}\ndef f(): return 1", "f", "assert f() == 1")


ALLOWED = """
import math, re, json, collections, itertools, functools, heapq, bisect, string, datetime, decimal
import numpy; assert numpy.linalg.inv(numpy.eye(3))[0, 0] == 1
import asyncio
async def f(): return 3
assert asyncio.run(f()) == 3
from dataclasses import dataclass
@dataclass
class A:
    x: "int" = 3
import tempfile, os
with tempfile.TemporaryDirectory() as d:
    open(d + '/x', 'w').write('hi')
open('a', 'w').write('hi')
os.rename('a', 'b')
assert open('b').read() == 'hi'
os.remove('b')
print('x' * 1_000_000)
if __name__ == '__main__':
    raise RuntimeError('the tests import this')
"""


def test_what_a_solution_may_do(each_sandbox):
    assert runs(replace(each_sandbox, memory_mb=1024), ALLOWED) == PASSED


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise KeyError", "raised KeyError"),
        ("def f(:", "raised SyntaxError"),
        ("x = '\0'", "raised (SyntaxError|ValueError)"),
        ("x = '\ud800'", "raised UnicodeEncodeError"),
        ("import sys; sys.exit(0)", "raised SystemExit"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("import os; os._exit(0)", "left before"),
        ("import os; os.abort()", "signal 6"),
        ("import os; os.execv('/usr/bin/env', ['env', 'true'])", "left before"),
        ("x = 'a' * 10**10", "raised MemoryError"),
        ("x = []\nwhile True: x.append(bytearray(10**7))", "raised MemoryError|ran out of"),
        ("def f(): f()\nf()", "raised RecursionError"),
        ("input()", "raised EOFError"),
        ("import sys; raise KeyError if sys.stdin.read() == '' else ValueError", "raised KeyError"),
        ("f = open('a', 'wb')\nwhile True: f.write(b'x' * 10**6)", "raised OSError"),
        ("class E(Exception): pass\nE.__name__ = 'x y ' * 1000\nraise E", "raised x y x"),
        ("class E(Exception): pass\nE.__name__ = ''\nraise E", "raised $"),
        ("import os\nos.closerange(0, 64)", "left before|raised|signal"),
        ("def f(x: List[int]): return sum(x)", "raised NameError"),
    ],
)
def test_what_costs_the_answer(program, reason, sandbox):
    run = runs(sandbox, program)
    assert (run.passed, run.marks) == (False, "")
    assert re.search(reason, run.reason), run.reason


@pytest.mark.parametrize("programs", [ENDLESS[:4], ENDLESS[4:]], ids=["waiting", "filling"])
def test_what_has_no_end_is_ended_in_time(each_sandbox, programs):
    sandbox = replace(each_sandbox, cpu_seconds=1, wall_seconds=2)

    def timed(program: str) -> tuple[ProgramReport, float]:
        started = time.monotonic()
        return runs(sandbox, program), time.monotonic() - started

    with ThreadPoolExecutor(len(programs)) as pool:
        for run, seconds in pool.map(timed, programs):
            assert not run.passed
            assert re.search("ran out of|signal|raised", run.reason), run.reason
            assert seconds < 2 + 2 * module._GRACE_SECONDS + 2  # two seconds for a busy machine


def test_each_assert_is_a_test(sandbox):
    tests = "def check(g):\n for x in range(4):\n  assert g(x) == x, 'wrong'\n assert g(5) == 5\ncheck(f)"
    report = sandbox.run("def f(x): return {0: 0, 2: 1 / x, 3: 3, 5: 5}[x]", "f", tests)
    assert report == ProgramReport(False, "---++", "raised ZeroDivisionError")


def test_what_passed_before_the_program_ended_has_passed(sandbox):
    sandbox = replace(sandbox, wall_seconds=1.5)
    tests = "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3"
    leaves = "import os\ndef f(x): return x if x < 2 else os._exit(0)"
    assert sandbox.run(leaves, "f", tests) == ProgramReport(False, "++", "left before its tests ended")
    waits = "import time\ndef f(x): return x if x < 2 else time.sleep(1000)"
    assert sandbox.run(waits, "f", tests) == ProgramReport(False, "++", "ran out of time")


def test_what_is_raised_is_raised_in_the_tests(sandbox):
    program = "class Own(Exception): pass\ndef f(x): raise {0: ValueError('bad'), 1: SystemExit(), 2: Own()}[x]"
    tests = """
for x, kind in enumerate((ValueError, RuntimeError, RuntimeError)):
    try:
        f(x)
        assert False
    except kind as error:
        assert str(error) == ('bad' if x == 0 else '')
"""
    assert sandbox.run(program, "f", tests) == ProgramReport(True, "", "passed")  # what stands in `try` has no mark


# Each reads a function's results, and is true where there is none.
READERS = {
    "all": "all(map(f, [name]))",
    "for": "not [y for y in map(f, [name])]",
    "next": "next(map(f, [name]), 0) == 0",
    "iter": "list(iter(lambda: f(name), 0)) == []",
    "zip": "list(zip(map(f, [name]), [1])) == []",
    "in": "0 not in map(f, [name])",
    "async for": "asyncio.run(results(name)) == []",
}
ENDING = f"""
import asyncio, builtins
class Results:
    def __init__(self, name): self.name = name
    def __aiter__(self): return self
    async def __anext__(self): return f(self.name)
async def results(name): return [y async for y in Results(name)]
for name, kind in vars(builtins).items():
    if isinstance(kind, type) and issubclass(kind, BaseException) and not name.endswith('Group'):
        {"; ".join(f"assert {reader}" for reader in READERS.values())}
"""


def test_no_exception_of_a_program_ends_its_results_early(sandbox):
    program = (
        "import builtins\ndef f(name): raise getattr(builtins, name)(*[b'', b'', 0, 1, ''][: 5 * ('Uni' in name)])"
    )
    report = sandbox.run(program, "f", ENDING)
    assert len(report.marks) > 60 * len(READERS)
    assert {*report.marks} == {"-"}


UNTESTED = {
    "nothing": "",
    "no assertion": "f(1)",
    "results that are not there": "for y in f(0):\n assert y",
    "a check that is not called": "def check():\n assert f(1)",
    "a `try` that asserts nothing": "try: f(1)\nexcept Exception: pass",
}


@pytest.mark.parametrize("tests", UNTESTED.values(), ids=UNTESTED.keys())
def test_tests_that_assert_nothing_are_not_passed(sandbox, tests):
    assert sandbox.run("def f(x): return []", "f", tests) == ProgramReport(False, "", "its tests asserted nothing")


def test_a_program_that_leaves_does_not_pass_whatever_its_tests_catch(sandbox):
    tests = "try:\n f(1)\n assert False\nexcept BaseException:\n pass\nassert True"
    report = sandbox.run("import os\ndef f(x): os._exit(0)", "f", tests)
    assert (report.passed, report.reason) == (False, "left before its tests ended")


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS.keys())
def test_no_cheat_passes(each_sandbox, program):
    assert_no_cheat(each_sandbox, program)


VALUES = [
    None, True, 0, -(1 << 5000), 1.5, float("inf"), 2j, "a\ud800", b"\0", [], [[1], (2,)], (), {1, 2}, frozenset({3}),
    {(1, 2): {"a": None}, None: []}, range(1, 9, 2), {"int": 3}, 10**400,
]  # fmt: skip


def test_plain_data_goes_and_comes_as_it_is(sandbox):
    tests = f"inf = float('inf')\nfor v in {VALUES!r}:\n  r = f(v)\n  assert r == v and type(r) is type(v)"
    assert sandbox.run(IDENTITY, "f", "import sys; sys.set_int_max_str_digits(0)\n" + tests).marks == "+" * len(VALUES)


def test_results_of_other_types_are_what_they_equal(sandbox):
    program = """
import collections, decimal, enum, fractions, numpy
class Colour(enum.IntEnum): RED = 3
class Word(str, enum.Enum): A = 'a'
def f(name): return eval(name)
"""
    equal = {
        "numpy.int64(3)": "3", "numpy.float64(.5)": "0.5", "numpy.bool_(1) ": "True", "Colour.RED": "3",
        "Word.A": "'a'", "collections.Counter('aa')": "{'a': 2}", "collections.OrderedDict(a=1)": "{'a': 1}",
        "collections.namedtuple('P', 'x')(1)": "(1,)", "decimal.Decimal('0.5')": "0.5", "bytearray(b'a')": "b'a'",
        "fractions.Fraction(1, 2)": "0.5",
    }  # fmt: skip
    unequal = {"(i for i in [1])": "[1]", "{1: 2}.keys()": "[1]", "numpy.array([1])": "[1]", "iter([1])": "[1]"}
    tests = [f"assert f({made!r}) == {value}" for made, value in equal.items()]
    tests += [f"assert f({made!r}) != {value}; assert list(f({made!r})) == {value}" for made, value in unequal.items()]
    report = replace(sandbox, memory_mb=1024).run(program, "f", "\n".join(tests))
    assert report == ProgramReport(True, "+" * 19, "passed")


def test_a_result_that_is_no_plain_data_costs_its_test(sandbox):
    report = sandbox.run("def f(x): return object() if x else 0", "f", "assert f(1) is not None\nassert f(0) == 0")
    assert report == ProgramReport(False, "-+", "raised TypeError")
    missing = sandbox.run("x = 1", "f", "assert f() is None")
    assert missing == ProgramReport(False, "-", "raised TypeError")


def test_tests_that_pass_something_else_can_t_be_run(sandbox):
    with pytest.raises(LossyUnsupportedError, match="these tests can't be run: an argument can't be sent: function is"):
        sandbox.run(IDENTITY, "f", "assert f(lambda: 1)")


DRAWN = "str({'a', 'b', 'c', 'd', 'e', 'f'}), random.random()"  # the usual ways for a test to come out by chance
SECRETS = "import os\ndef f(): return list(os.environ.values())"
SEPARATE = {
    "annotations": ("def g(x: int): pass\ndef f(): return g.__annotations__ == {'x': int}", "assert f()", ""),
    "files that the program has written are not imported": (
        "open('written.py', 'w').close()\n" + IDENTITY,
        "try:\n  import written\n  found = True\nexcept ImportError:\n  found = False\nassert not found", "",
    ),
    "helpers are the tests' own": (
        "def helper(x): return 'cheat'\n" + IDENTITY, "assert f(helper(1)) == 2", "def helper(x): return 2 * x",
    ),
    "every run draws the same numbers": (
        f"import random\ndrawn = {DRAWN}\ndef f(): return drawn", f"import random\nassert f() == ({DRAWN})", "",
    ),
    "environment variables stay here": (
        SECRETS, "import os\nassert 'secret' not in f() and 'secret' not in os.environ.values()", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "tests", "helpers"), SEPARATE.values(), ids=SEPARATE.keys())
def test_program_and_tests_share_nothing_but_the_function(each_sandbox, monkeypatch, program, tests, helpers):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert each_sandbox.run(program, "f", tests, helpers) == PASSED


@on_linux
def test_killing_the_caller_ends_the_program(isolated):
    caller = os.fork()
    if caller == 0:
        try:
            runs(replace(isolated, wall_seconds=500), "import time; time.sleep(1000)")
        finally:
            os._exit(0)
    wait_until(lambda: len(descendants(caller)) >= 6)  # bwrap twice and Python, for the program and for its tests
    started = descendants(caller)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    wait_until(lambda: not any(alive(process) for process in started))


def test_an_interrupted_caller_ends_the_program(each_sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(*_):
        raise KeyboardInterrupt

    others = descendants(os.getpid()) if sys.platform == "linux" else []
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            runs(replace(each_sandbox, wall_seconds=500), "import time; time.sleep(1000)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if sys.platform == "linux":
        wait_until(lambda: not set(descendants(os.getpid())) - set(others))
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_can_t_be_set_up_is_no_failed_answer(sandbox, monkeypatch, tmp_path):
    broken = tmp_path / "inside.py"
    broken.write_text("raise RuntimeError('not today')")
    monkeypatch.setattr(module, "_INSIDE", broken)
    with pytest.raises(LossyUnsupportedError, match=r"can't be run in a sandbox here: RuntimeError: not today$"):
        runs(sandbox, "")


def test_without_isolation_programs_are_refused(monkeypatch):
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    isolation.unavailable.cache_clear()
    try:
        with pytest.raises(LossyUnsupportedError, match=r"can't be isolated here: .*set `unsafe_no_isolation`"):
            Sandbox()
        with pytest.warns(UserWarning, match="can read, change and send whatever you can"):
            unsafe = Sandbox(unsafe_no_isolation=True)
        assert runs(unsafe, "") == PASSED
    finally:
        isolation.unavailable.cache_clear()


def test_a_system_without_limits_is_refused(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LossyUnsupportedError, match="the module `resource`"):
        Sandbox(unsafe_no_isolation=True)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("cpu_seconds", 0), ("wall_seconds", float("nan")), ("memory_mb", "1"), ("disk_mb", 1.0),
     ("unsafe_no_isolation", "yes")],
)  # fmt: skip
def test_limits_are_checked(limit, value):
    with pytest.raises(LossyValueError, match=f"`{limit}`"):
        Sandbox(**{limit: value})


def descendants(ancestor: int) -> list[int]:
    """Return all processes below one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            parents[int(entry.parent.name)] = int(parent)
    found = [ancestor]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
