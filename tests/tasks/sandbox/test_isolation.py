"""What an isolated program sees of the machine, and what it can use up."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hf_lossy_assist.tasks.sandbox import ProgramReport, Sandbox, isolation

PASSED = ProgramReport(True, "+", "passed")
REFUSED = """
import ctypes, mmap, os, shutil, signal, socket, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def f(attempt):
    try:
        exec(attempt, globals())
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}"
    return "done"
"""


def attempt(sandbox: Sandbox, attempts: list[str]) -> ProgramReport:
    """Run statements, each of which has to be refused."""
    tests = "\n".join(f"assert f({statement!r}) != 'done'" for statement in attempts)
    return sandbox.run(REFUSED, "f", tests)


def assert_refused(sandbox: Sandbox, attempts: list[str]) -> None:
    report = attempt(sandbox, attempts)
    let_through = [statement for statement, mark in zip(attempts, report.marks, strict=True) if mark == "-"]
    assert (let_through, report.reason) == ([], "passed")


def test_an_attempt_that_works_is_seen(isolated):
    report = attempt(isolated, ["open('x', 'w')", "open('/x', 'w')"])
    assert report == ProgramReport(False, "-+", "raised AssertionError")


INSTALLED = os.path.realpath(os.__file__)
SEEN = [os.path.dirname(INSTALLED), sys.prefix, "/usr", "/", "/dev"]
ATTEMPTS = {
    "processes and threads": [
        "os.fork()", "os.posix_spawn('/usr/bin/env', ['env'], {})", "subprocess.run(['/usr/bin/env'])",
        "os.system('true') == 0 or call('fork')", "call('fork')", "call('vfork')", "call('unshare', 0x10000000)",
        "threading.Thread(target=print).start()",
    ],
    "memory of no process": [
        "call('shmget', 0, 1 << 20, 0o1600)", "call('msgget', 0, 0o1600)", "call('semget', 0, 1, 0o1600)",
        "os.memfd_create('x')", "call('mq_open', b'/x', 0o102, 0o600, None)", "open('/dev/shm/x', 'w')",
        "call('mount', b'none', b'/sandbox', b'tmpfs', 0, b'size=1g')",
    ],
    "writing to what is seen": [
        f"open({INSTALLED!r}, 'a')", f"os.remove({INSTALLED!r})", f"os.chmod({INSTALLED!r}, 0o777)",
        *(f"open({folder!r} + '/new', 'w')" for folder in SEEN), *(f"os.mkdir({folder!r} + '/new')" for folder in SEEN),
        "os.mkfifo('/pipe')", "os.setuid(0)", "os.chown('.', 1, 1)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("attempts", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_what_a_program_may_not_do(isolated, attempts):
    assert_refused(isolated, attempts)


def test_there_is_no_network_and_no_socket(isolated):
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
        assert_refused(
            isolated,
            [
                f"socket.create_connection({where!r}, timeout=1)",
                "socket.create_server(('127.0.0.1', 0))",
                "socket.getaddrinfo('example.org', 80)",
                "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
                "socket.socket(socket.AF_UNIX)",
            ],
        )
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.accept()


def test_files_of_others_are_not_there(isolated, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    canary.chmod(0o666)
    tmp_path.chmod(0o777)
    os.mkfifo(tmp_path / "pipe", 0o666)
    path, folder = str(canary), str(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        places = [path, f"{folder}/pipe", f"{folder}/s", folder, "/etc/passwd", "/proc", "/sys", "/run", "/dev/tty"]
        assert_refused(isolated, [f"os.stat({place!r})" for place in places])


def test_no_other_process_can_be_reached(isolated):
    others = [os.getpid(), os.getppid()]
    tests = [f"assert f('os.kill({process}, 0)') == 'ProcessLookupError'" for process in others]
    assert isolated.run(REFUSED, "f", "\n".join(tests)).marks == "++"


def test_the_folder_holds_no_more_than_was_said(isolated):
    program = """
def f():
    written = 0
    try:
        for i in range(10**6):
            with open(str(i), 'wb', buffering=0) as file:
                written += file.write(b'x' * (1 << 16))
    except OSError:
        return written
"""
    assert isolated.run(program, "f", f"assert 0 < f() <= {isolated.disk_mb << 20}") == PASSED


def test_a_folder_full_of_files_does_not_hold_the_caller(isolated):
    program = "import os\nfor i in range(10**9):\n  os.mkdir('d')\n  os.chdir('d')"
    started = time.monotonic()
    assert not replace(isolated, wall_seconds=2, cpu_seconds=9).run(program, "f", "").passed
    assert time.monotonic() - started < 6


def test_other_numbers_of_the_same_calls_end_the_program(isolated):
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 has two sets of numbers")
    program = "import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)\ndef f(): return 1"
    assert isolated.run(program, "f", "assert f() == 1").reason == "was ended by signal 31"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_whole(machine):
    filter_ = isolation.syscall_filter(machine)
    assert len(filter_) % 8 == 0
    instructions = [filter_[i : i + 8] for i in range(0, len(filter_), 8)]
    jumps = [(i, op[2]) for i, op in enumerate(instructions) if op[0] == 0x15 and i > 1]
    assert {i + 1 + jump for i, jump in jumps} == {len(instructions) - 1}  # every refused call leads to the last line


@pytest.fixture
def untried(needs_isolation) -> Iterator[None]:
    """Forget whether programs can be isolated, before and after."""
    isolation.unavailable.cache_clear()
    yield
    isolation.unavailable.cache_clear()


def test_where_bwrap_fails_its_words_are_the_reason(untried, monkeypatch):
    start = isolation.start
    monkeypatch.setattr(isolation, "start", lambda c, *a, **k: start([c[0], "--no-such-option", *c[1:]], *a, **k))
    assert "no-such-option" in isolation.unavailable()


def test_bwrap_may_be_anywhere_on_the_path(untried, tmp_path, monkeypatch):
    shutil.copy(shutil.which("bwrap"), tmp_path / "bwrap")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "defpath", "/nowhere")
    assert isolation.unavailable() is None
    assert Sandbox().run("def f(): return 1", "f", "assert f() == 1").passed


def test_a_bwrap_that_is_no_program_is_a_reason(untried, tmp_path, monkeypatch):
    (tmp_path / "bwrap").write_bytes(b"\x7fELF")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.search("does not start: .*bwrap", isolation.unavailable())
