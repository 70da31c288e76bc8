"""The innermost process: it limits itself, then becomes the program and its tests."""

from __future__ import annotations

import os
import random
import resource
import sys
import types
from typing import Any

from . import guard

READY = b"ready\n"


def limit_resources(job: dict[str, Any]) -> None:
    """Set the kernel's limits for this process, soft and hard alike. Lower ones that are already set stay."""
    cpu, memory, disk = job["cpu_seconds"], job["memory_mb"] << 20, job["disk_mb"] << 20
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # a signal first, which tells the reason; then the end
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


def become(job: dict[str, Any], nonce: bytes, channel: int) -> None:
    """Run the program and its tests, then write to ``channel`` how it went. Does not return.

    Only ``nonce`` says that the tests were reached and passed. The program shares this process and could search the
    frames for it; leaving early, by whatever way, does not find it.
    """
    # The program may replace whatever it can reach by name.
    write, leave, execute = os.write, os._exit, exec
    random.seed(0)  # the same program has to get the same answer each time
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    guard.install(None if job["isolate"] else os.getcwd())
    write(channel, READY)
    try:
        execute(compile(job["program"], "solution", "exec"), solution.__dict__)
        execute(compile(job["tests"], "tests", "exec"), solution.__dict__)
    except BaseException as error:
        write(channel, b"failed " + type(error).__name__.encode(errors="replace")[:100])
    else:
        write(channel, nonce)
    leave(0)
