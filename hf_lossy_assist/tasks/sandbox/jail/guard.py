"""An audit hook that refuses what a solution of a programming problem has no reason to do.

It works on every system and can't be taken out again, but it is Python guarding Python: it stops accidents and what
language models write, not somebody who sets out to defeat it. The kernel's part is in :mod:`kernel`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_REFUSED = frozenset(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system os.kill os.killpg subprocess.Popen pty.spawn "
    "socket.connect socket.bind socket.sendto socket.sendmsg socket.getaddrinfo socket.getnameinfo "
    "socket.gethostbyname socket.gethostbyaddr ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle".split()
)
# Event -> (index of a path, index of the descriptor of the folder it is relative to) for each path that it changes.
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.truncate": ((0, None),),
    "os.chflags": ((0, None),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
    "sqlite3.connect": ((0, None),),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAX_WRITTEN_FILES = 100


def install(workdir: str | None) -> None:
    """Refuse processes, network and C libraries, and with ``workdir`` every change to a file outside it."""
    sys.addaudithook(_refuse_actions)
    if workdir is not None:
        sys.addaudithook(_files_guard(os.path.realpath(workdir)))


def _refuse_actions(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED:
        raise PermissionError(f"{event} is not allowed in a solution")


def _files_guard(root: str) -> Callable[[str, tuple[Any, ...]], None]:
    opened = 0

    def check(path: Any, folder: int | None = None) -> None:
        if isinstance(path, int):
            return  # a descriptor, whose opening was checked
        base = os.readlink(f"/proc/self/fd/{folder}") if folder not in (None, -1) else os.getcwd()
        full = os.path.realpath(os.path.join(base, os.fsdecode(path)))
        if full not in (root, "/dev/null") and not full.startswith(root + os.sep):
            raise PermissionError(f"{full} is outside the solution's folder")

    def refuse_changes(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal opened
        if event == "open" and arguments[2] & _WRITING:
            check(arguments[0])
            opened += 1
            if opened > _MAX_WRITTEN_FILES:
                raise PermissionError(f"more than {_MAX_WRITTEN_FILES} files were opened for writing")
        for path, folder in _CHANGES.get(event, ()):
            check(arguments[path], None if folder is None else arguments[folder])

    return refuse_changes
