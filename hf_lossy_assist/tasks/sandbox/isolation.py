"""The command that isolates a process: `bwrap`, with a filter of system calls.

One mechanism, the same for root and for ordinary users: namespaces of its own for users, processes, network, IPC, host
name and mounts; a file tree that holds nothing but the Python installation and the system's libraries, all read-only,
and one folder in memory; and a seccomp filter that refuses what would get round the limits of a single process.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = "/sandbox"

# What is refused, with its numbers on x86-64 and AArch64: further processes and threads, which multiply every limit;
# memory that belongs to no process; sockets; namespaces, tracing, and parts of the kernel that no solution needs.
_REFUSED_CALLS = {
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "socket": (41, 198),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_FIRST_X32_CALL = 0x40000000  # x86-64's second set of numbers for the same calls

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_NOT_LESS, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # the last one with the error EPERM


def syscall_filter(machine: str) -> bytes:
    """Return the seccomp program, as BPF, that refuses these calls and kills who uses other sets of numbers."""
    column, architecture = _ARCHITECTURES[machine]
    refused = [numbers[column] for numbers in _REFUSED_CALLS.values() if numbers[column] is not None]
    program = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_NOT_LESS, 0, 1, _FIRST_X32_CALL),
        (_RETURN, 0, 0, _KILL),
        *((_JUMP_IF_EQUAL, len(refused) - i, 0, number) for i, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def python_folders() -> list[str]:
    """Return the folders of this Python: its environment's, its installation's, and where links in these lead to."""
    named = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
    return sorted({path for folder in named for path in (folder, os.path.realpath(folder))})


def bwrap_command(disk_mb: int, filter_descriptor: int) -> list[str]:
    """Return the beginning of a command whose rest runs isolated, in :data:`FOLDER`.

    The folder can hold ``disk_mb`` MiB; ``filter_descriptor`` is one that :func:`syscall_filter` can be read from.
    """
    system = ["/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/nix/store", "/gnu/store"]
    visible = [*system, *(folder for folder in python_folders() if not Path(folder).is_relative_to("/usr"))]
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--seccomp", str(filter_descriptor)),
        *(part for path in visible for part in ("--ro-bind-try", path, path)),
        *(part for name in ("null", "zero", "urandom") for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *("--size", str(disk_mb << 20), "--tmpfs", FOLDER, "--remount-ro", "/", "--chdir", FOLDER, "--"),
    ]


def start(command: list[str], folder: str, passed: tuple[int, ...], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a session, without any of the caller's environment variables.

    ``folder`` is the home of the new process, which inherits the descriptors ``passed``.
    """
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    python = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    home = {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    return subprocess.Popen(
        command, env={**home, **alone, **python}, pass_fds=passed, start_new_session=True, **options
    )


def start_isolated(
    command: list[str], disk_mb: int, passed: tuple[int, ...] = (), **options: Any
) -> subprocess.Popen[bytes]:
    """Start a command as :func:`start` does, isolated, in a folder in memory that can hold ``disk_mb`` MiB."""
    inlet, outlet = os.pipe()
    try:
        os.write(outlet, syscall_filter(platform.machine()))
        os.close(outlet)
        return start([*bwrap_command(disk_mb, inlet), *command], FOLDER, (inlet, *passed), **options)
    finally:
        os.close(inlet)


@functools.cache
def unavailable() -> str | None:
    """Return why programs can't be isolated here, or None where they can (tried once)."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return f"this is {sys.platform} on {platform.machine()}, not Linux on {' or '.join(_ARCHITECTURES)}"
    if shutil.which("bwrap") is None:
        return "`bwrap` is not installed"
    trial = start_isolated([sys.executable, "-c", ""], 1, stderr=subprocess.PIPE)
    _, errors = trial.communicate()
    return None if trial.returncode == 0 else errors.decode(errors="replace").strip() or f"status {trial.returncode}"
