"""What the Linux kernel can be asked for, by way of the C library. Nothing here is called on other systems."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 8, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 1 << 2
_CAP_SYS_ADMIN = 1 << 21
_CAPS_TO_CHANGE_USER = 1 << 0 | 1 << 6 | 1 << 7  # CAP_CHOWN, CAP_SETGID, CAP_SETUID

NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Have this process killed when its parent ends. A change of user or capabilities undoes it."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own: a daemon can't slip away then."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter_namespaces() -> None:
    """Leave the network, and give all later children a process table and mounts of their own.

    Who is no administrator gets the right to do this from a user namespace in which only their own id exists.
    """
    user, group = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC
    if _capabilities() & _CAP_SYS_ADMIN:
        _call("unshare", flags)
        return
    _call("unshare", flags | _CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def protect_files(workdir: str, size_mb: int) -> None:
    """Make every file read-only for this mount namespace, and ``workdir`` an empty one in memory."""
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    attributes = _MountAttributes(set=_MS_RDONLY)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("syscall", _SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, ctypes.byref(attributes), size)
    harmless = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    options = f"size={size_mb}m,nr_inodes=1024,mode=0777".encode()
    _call("mount", b"tmpfs", os.fsencode(workdir), b"tmpfs", harmless, options)
    # Where parts of /proc are masked, as in many containers, the kernel grants no second one. The old one shows
    # processes that can't be reached from here.
    with contextlib.suppress(OSError):
        _call("mount", b"proc", b"/proc", b"proc", harmless | _MS_RDONLY, None)


def drop_privileges(workdir: str) -> None:
    """Stop being root (``workdir`` is handed over), and give up all capabilities and the ways to get them back.

    Root is not bound by the limit on processes. Where Python itself lies in a folder of root's own, the right to read
    every file is kept; where there is not even that right, or no other user to become, as in some containers, root
    without capabilities is what remains.
    """
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kept = 0
    if os.geteuid() == 0:
        readable = _everybody_reads_python()
        kept = 0 if readable else _capabilities() & _CAP_DAC_READ_SEARCH
        if (readable or kept) and _nobody_is_there():
            os.chown(workdir, NOBODY, NOBODY)
            _call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    effective_permitted_inheritable = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _call("capset", ctypes.byref(_CapabilityHeader(_CAPABILITY_VERSION_3, 0)), effective_permitted_inheritable)


def _capabilities() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapPrm"))


def _nobody_is_there() -> bool:
    """Tell whether this process can become the user "nobody"."""
    with open("/proc/self/uid_map") as ranges:
        mapped = [[int(number) for number in line.split()] for line in ranges]
    known = any(first <= NOBODY < first + count for first, _, count in mapped)
    return known and _capabilities() & _CAPS_TO_CHANGE_USER == _CAPS_TO_CHANGE_USER


def _everybody_reads_python() -> bool:
    """Tell whether another user could still import the standard library, which may lie in root's own folder."""
    folder = os.path.dirname(os.path.realpath(os.__file__))
    while True:
        if not os.stat(folder).st_mode & 0o001:
            return False
        if folder == os.path.dirname(folder):
            return True
        folder = os.path.dirname(folder)
