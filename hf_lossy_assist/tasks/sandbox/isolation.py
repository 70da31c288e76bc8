"""Processes isolated by `bwrap` and a filter of system calls, for root and ordinary users alike.

A process has its own namespaces (users, processes, network, IPC, host name, mounts). It sees the Python installation
and the system's libraries, read-only, and can write to one folder in memory.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

FOLDER = "/sandbox"

# Calls that would get round a process's limits, with their numbers on x86-64 and AArch64: more processes and threads,
# memory that belongs to no process, sockets, namespaces, tracing, and other parts of the kernel.
_REFUSED_CALLS = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "unshare": (272, 97),
    "setns": (308, 268), "socket": (41, 198), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "io_uring_setup": (425, 425),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_NOT_LESS, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # the last one with the error EPERM


def syscall_filter(machine: str) -> bytes:
    """Return the seccomp program, as BPF: it refuses these calls, and kills processes of another architecture."""
    column, architecture = _ARCHITECTURES[machine]
    refused = [numbers[column] for numbers in _REFUSED_CALLS.values() if numbers[column] is not None]
    program = [
        (_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL),
        # The call's number; x86-64 has a second set of numbers.
        (_LOAD, 0, 0, 0), (_JUMP_IF_NOT_LESS, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL),
        *((_JUMP_IF_EQUAL, len(refused) - i, 0, number) for i, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def start(command: list[str], folder: str, passed: tuple[int, ...], **options: Any) -> Popen[bytes]:
    """Start a command as a session's leader with the home ``folder``, without the caller's variables."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    python = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    variables = {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **alone, **python}
    return Popen(command, env=variables, pass_fds=passed, start_new_session=True, **options)


def start_isolated(command: list[str], disk_mb: int, passed: tuple[int, ...] = (), **options: Any) -> Popen[bytes]:
    """Start a command isolated, with ``disk_mb`` MiB of files in memory."""
    python = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
    python += map(os.path.realpath, python[:2])
    system = ["/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/nix/store", "/gnu/store"]
    visible = [*system, *(folder for folder in python if not Path(folder).is_relative_to("/usr"))]
    with tempfile.TemporaryFile() as file:
        file.write(syscall_filter(platform.machine()))
        file.seek(0)
        bwrap = [  # by its path: the new process has a PATH of its own
            *(shutil.which("bwrap") or "bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"),
            *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--seccomp", str(file.fileno())),
            *(part for path in visible for part in ("--ro-bind-try", path, path)),
            *(part for name in ("null", "zero", "urandom") for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
            *("--size", str(disk_mb << 20), "--tmpfs", FOLDER, "--remount-ro", "/", "--chdir", FOLDER, "--"),
        ]
        return start([*bwrap, *command], FOLDER, (file.fileno(), *passed), **options)


@functools.cache
def unavailable() -> str | None:
    """Return why programs can't be isolated here, or None if they can; tried once."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return f"this is {sys.platform} on {platform.machine()}, not Linux on {' or '.join(_ARCHITECTURES)}"
    if shutil.which("bwrap") is None:
        return "`bwrap` is not installed"
    try:
        trial = start_isolated([sys.executable, "-c", ""], 1, stderr=PIPE)
    except OSError as error:
        return f"`bwrap` does not start: {error}"
    _, errors = trial.communicate()
    return None if trial.returncode == 0 else errors.decode(errors="replace").strip() or f"status {trial.returncode}"
