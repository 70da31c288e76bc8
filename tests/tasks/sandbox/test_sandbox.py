"""What bad programs cost: a failed answer, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.tasks.sandbox import Limits, Outcome, kernel_isolation, run_tests, running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

# The clock is generous where nothing waits for it: a busy machine must not fail a test.
SMALL = Limits(wall_seconds=60, memory_mb=256, disk_mb=4)
BRIEF = Limits(cpu_seconds=1, wall_seconds=0.8, memory_mb=256, disk_mb=4)

# Processes started past the audit hook, as a hostile program could.
RAW_PROCESS = "import subprocess, sys\nsys.audit = lambda *_: None\nstart = subprocess.Popen\n"

TO_ALL = "import os\nfor i in range(3, 64):\n  try:"


@pytest.fixture(params=["namespaces", "audit hook"])
def isolate(request) -> bool:
    """Each program meets both ways of keeping it in, where the system allows both."""
    if request.param == "namespaces" and not kernel_isolation():
        pytest.skip("this system allows no namespaces")
    return request.param == "namespaces"


def outcome(program: str, isolate: bool, tests: str = "") -> Outcome:
    return run_tests(program, tests, SMALL, isolate=isolate)


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
import builtins
os.write = os._exit = builtins.exec = None
"""


def test_what_a_solution_may_do(isolate):
    assert run_tests(ALLOWED, "", Limits(disk_mb=4), isolate=isolate) == Outcome(True, "passed")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise KeyError", "raised KeyError"),
        ("def f(:", "raised SyntaxError"),
        ("x = '\0'", "raised (SyntaxError|ValueError)"),
        ("x = '\ud800'", "raised UnicodeEncodeError"),
        ("import sys; sys.exit(0)", "raised SystemExit"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("import os; os._exit(0)", "left before its tests ended"),
        ("import os; os.abort()", "signal 6"),
        ("x = 'a' * 10**10", "raised MemoryError"),
        ("x = []\nwhile True: x.append(bytearray(10**7))", "raised MemoryError|ran out of"),
        ("def f(): f()\nf()", "raised RecursionError"),
        ("input()", "raised EOFError"),
        ("import sys; raise KeyError if sys.stdin.read() == '' else ValueError", "raised KeyError"),
        ("f = open('a', 'wb')\nwhile True: f.write(b'x' * 10**6)", "raised OSError"),
        ("for i in range(10**9): open(str(i), 'wb').write(b'x' * 10**6)", "raised (OSError|PermissionError)"),
        ("import os\nwhile True: os.fork()", "raised PermissionError"),
        ("class E(Exception): pass\nE.__name__ = 'x y ' * 1000\nraise E", "raised x y x"),
        ("class E(Exception): pass\nE.__name__ = ''\nraise E", "raised $"),
        ("import os\nos.closerange(0, 64)", "left before|raised|signal"),
        (f"{TO_ALL} os.write(i, b'passed')\n  except OSError: pass\nos._exit(0)", "left before"),
        (f"{TO_ALL}\n   while True: os.write(i, b'x' * 1000)\n  except OSError: pass", "signal|left before|ran out of"),
    ],
)
def test_what_costs_the_answer(program, reason, isolate):
    run = outcome(program, isolate)
    assert not run.passed
    assert re.search(reason, run.reason), run.reason


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import signal; signal.raise_signal(signal.SIGSTOP)",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: print('x' * 1000)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return [f()]\nf()",
    ],
)
def test_what_has_no_end_is_ended(program):
    run = run_tests(program, "", BRIEF)
    assert not run.passed
    assert re.search("ran out of|signal|raised", run.reason)


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(1000)"])
def test_what_has_no_end_is_ended_without_namespaces_too(program):
    assert re.match("ran out of", run_tests(program, "", BRIEF, isolate=False).reason)


def test_what_is_refused(isolate):
    attempts = [
        "os.fork()",
        "os.system('true')",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "subprocess.run(['true'])",
        "os.kill(os.getppid(), 9)",
        "os.killpg(0, 9)",
        "ctypes.CDLL(None).fork()",
        "ctypes.pythonapi.PyOS_AfterFork_Child()",
        "socket.create_server(('127.0.0.1', 0))",
        "socket.getaddrinfo('example.org', 80)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "socket.socket(socket.AF_UNIX).connect('/run/socket')",
    ]
    assert outcome(refused(attempts), isolate) == Outcome(True, "passed")


def test_the_tests_decide(isolate):
    program = "def double(x): return 2 * x"
    assert outcome(program, isolate, "assert double(4) == 8").passed
    assert outcome(program, isolate, "assert double(4) == 9") == Outcome(False, "raised AssertionError")


def test_leaving_from_within_a_tested_function_is_no_way_to_pass(isolate):
    assert not outcome("import os\ndef f(): os._exit(0)", isolate, "assert f() == 1").passed


def test_raw_processes_are_refused_by_the_kernel(isolate):
    if not outcome("import os; assert os.geteuid() != 0", isolate).passed:
        pytest.skip("root in a container may have to stay root, whom no limit on processes binds")
    assert outcome(RAW_PROCESS + "start('/bin/true')", isolate) == Outcome(False, "raised BlockingIOError")


def test_a_raw_fork_bomb_leaves_nothing_behind(isolate, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = outcome(RAW_PROCESS + "while True: start(['/bin/sh', '-c', 'sleep 1000 & sleep 1000'])", isolate)
    assert not run.passed
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_threads_can_t_be_started(isolate):
    if not outcome("import os; assert os.geteuid() != 0", isolate).passed:
        pytest.skip("root in a container may have to stay root, whom no limit on processes binds")
    run = outcome("import threading; threading.Thread(target=print).start()", isolate)
    assert run == Outcome(False, "raised RuntimeError")


def test_the_files_of_others_stay(isolate, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    canary.chmod(0o666)
    tmp_path.chmod(0o777)
    path, folder = str(canary), str(tmp_path)
    attempts = [
        f"os.remove({path!r})",
        f"os.rename({path!r}, 'mine')",
        f"os.truncate({path!r}, 0)",
        f"os.chmod({path!r}, 0)",
        f"os.symlink({folder!r}, 'way'); os.remove('way/canary')",
        f"os.remove('canary', dir_fd=os.open({folder!r}, os.O_RDONLY))",
        f"shutil.rmtree({folder!r})",
        f"os.close(os.open({path!r}, os.O_WRONLY | os.O_TRUNC))",
        f"open({path!r}, 'a').write('mine')",
        f"open({folder!r} + '/new', 'w').write('mine')",
        f"os.mkdir({folder!r} + '/new')",
        f"open({folder!r}.encode() + b'/new', 'w')",
        f"os.chdir({folder!r}); os.remove('canary')",
    ]
    assert outcome(refused(attempts), isolate) == Outcome(True, "passed")
    outcome(f"import sqlite3; sqlite3.connect({folder!r} + '/new').execute('create table t (x)')", isolate)
    assert canary.read_text() == "alive"
    assert canary.stat().st_mode & 0o777 == 0o666
    assert [entry.name for entry in tmp_path.iterdir()] == ["canary"]


def test_no_program_reaches_a_server(isolate):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        where = server.getsockname()
        run = outcome(f"import socket; socket.create_connection({where!r}, timeout=1)", isolate)
        assert not run.passed
        with pytest.raises(TimeoutError):
            server.accept()


def test_in_a_namespace_there_is_no_network_to_use():
    if not kernel_isolation():
        pytest.skip("this system allows no namespaces")
    program = "import socket; assert [name for _, name in socket.if_nameindex()] == ['lo']"
    assert outcome(program, True).passed


def test_environment_variables_stay_here(isolate, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert outcome("import os; assert 'secret' not in os.environ.values()", isolate).passed


def test_the_same_program_draws_the_same_numbers(isolate):
    # The order of a set of texts and an unseeded generator are the usual ways for a test to come out by chance.
    program = "seen = str({'a', 'b', 'c', 'd', 'e', 'f'})"
    first = [outcome(program, isolate, f"assert seen.find('b') {sign} seen.find('e')").passed for sign in "<><"]
    assert first[0] == first[2] != first[1]
    assert outcome("import random\ndraw = random.random()", isolate, "assert draw == 0.8444218515250481").passed


@on_linux
def test_killing_the_caller_ends_the_program(isolate, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caller = os.fork()
    if caller == 0:
        try:
            run_tests("import time; time.sleep(1000)", "", Limits(wall_seconds=500), isolate=isolate)
        finally:
            os._exit(0)
    wait_until(lambda: len(processes_of(tmp_path)) >= 2)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    wait_until(lambda: not processes_of(tmp_path))


def test_an_interrupted_caller_ends_the_program(isolate, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "default_int_handler", interrupt)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tests("import time; time.sleep(1000)", "", Limits(wall_seconds=500), isolate=isolate)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if sys.platform == "linux":
        wait_until(lambda: not processes_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_jail_that_can_t_be_set_up_is_no_failed_answer(monkeypatch):
    monkeypatch.setattr(running, "_START", "raise RuntimeError('no jail today')")
    with pytest.raises(LossyUnsupportedError, match=r"can't be run in a sandbox here: RuntimeError: no jail today$"):
        run_tests("x = 1", "", BRIEF, isolate=False)


def test_a_system_without_limits_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LossyUnsupportedError, match="the module `resource`"):
        run_tests("x = 1", "")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"cpu_seconds": 0}, "`cpu_seconds` has to be a whole number > 0, but is 0"),
        ({"wall_seconds": float("nan")}, "`wall_seconds` has to be a number > 0, but is nan"),
        ({"memory_mb": "1"}, "`memory_mb` has to be a whole number > 0, but is '1'"),
        ({"disk_mb": 1.0}, r"`disk_mb` has to be a whole number > 0, but is 1\.0"),
    ],
)
def test_limits_are_checked(limits, message):
    with pytest.raises(LossyValueError, match=message):
        Limits(**limits)


def refused(attempts: list[str]) -> str:
    """Return a program that passes if each of the statements raises an OSError."""
    return f"""
import ctypes, os, shutil, socket, subprocess
for attempt in {attempts!r}:
    try:
        exec(attempt)
    except OSError:
        continue
    raise AssertionError(attempt)
"""


def processes_of(folder: Path) -> list[int]:
    """Return the processes whose environment names a folder: those of a jail have it as their home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
