"""System calls in which a thread may wait: their numbers, and what a thread in them is doing."""

from __future__ import annotations

import platform
from typing import Final, Literal, NamedTuple

Target = Literal["none", "file", "path", "path_at", "poll"]


class Meaning(NamedTuple):
    """What a thread in the call is doing.

    Attributes:
        target: the call's object: nothing that has a name, the file or socket of the first argument, the path to which
            the first or second argument points, or the file descriptors of poll(2).
        of_file: participle for a file or a path.
        of_socket: participle for a socket; "": same as for a file.
    """

    target: Target
    of_file: str
    of_socket: str = ""


_READ: Final = Meaning("file", "reading", "receiving from")
_WRITE: Final = Meaning("file", "writing", "sending to")
_RECEIVE: Final = Meaning("file", "receiving from")
_SEND: Final = Meaning("file", "sending to")
_SYNC: Final = Meaning("file", "writing to disk (fsync)")
_SLEEP: Final = Meaning("none", "sleeping")
_POLL: Final = Meaning("poll", "waiting for data from")
_EVENTS: Final = Meaning("none", "waiting for events of files or sockets")
_CHILD: Final = Meaning("none", "waiting for a child process")
_STAT: Final = Meaning("path", "looking up")
_LOOK_UP: Final = Meaning("path_at", "looking up")

MEANINGS: Final[dict[str, Meaning]] = {
    "read": _READ, "readv": _READ, "pread64": _READ, "preadv": _READ,
    "write": _WRITE, "writev": _WRITE, "pwrite64": _WRITE, "pwritev": _WRITE,
    "recvfrom": _RECEIVE, "recvmsg": _RECEIVE, "sendto": _SEND, "sendmsg": _SEND,
    "connect": Meaning("file", "connecting to"),
    "accept": Meaning("file", "waiting for a connection on"), "accept4": Meaning("file", "waiting for a connection on"),
    "fsync": _SYNC, "fdatasync": _SYNC, "close": Meaning("file", "closing"),
    "ftruncate": Meaning("file", "truncating"), "fallocate": Meaning("file", "allocating space for"),
    "flock": Meaning("file", "waiting for a lock of"), "fcntl": Meaning("file", "waiting for a lock of"),
    "ioctl": Meaning("file", "in the driver of"), "fstat": Meaning("file", "looking up"),
    "getdents64": Meaning("file", "listing"), "lseek": Meaning("file", "seeking in"),
    "open": Meaning("path", "opening"), "openat": Meaning("path_at", "opening"),
    "stat": _STAT, "lstat": _STAT, "access": _STAT,
    "newfstatat": _LOOK_UP, "statx": _LOOK_UP, "faccessat": _LOOK_UP, "faccessat2": _LOOK_UP, "readlinkat": _LOOK_UP,
    "statfs": Meaning("path", "looking up the file system of"),
    "mkdir": Meaning("path", "creating"), "mkdirat": Meaning("path_at", "creating"),
    "unlink": Meaning("path", "deleting"), "unlinkat": Meaning("path_at", "deleting"),
    "rename": Meaning("path", "renaming"), "renameat": Meaning("path_at", "renaming"),
    "renameat2": Meaning("path_at", "renaming"),
    "poll": _POLL, "ppoll": _POLL,
    "select": _EVENTS, "pselect6": _EVENTS, "epoll_wait": _EVENTS, "epoll_pwait": _EVENTS,
    "nanosleep": _SLEEP, "clock_nanosleep": _SLEEP, "pause": Meaning("none", "waiting for a signal"),
    "futex": Meaning("none", "waiting for another thread"), "wait4": _CHILD, "waitid": _CHILD,
    "io_getevents": Meaning("none", "waiting for asynchronous input and output"),
    "io_uring_enter": Meaning("none", "waiting for asynchronous input and output"),
    "sync": Meaning("none", "writing all files to disk (sync)"),
    "exit_group": Meaning("none", "ending"),
}  # fmt: skip
"""Meanings by name. Calls that do not wait are left out."""

_X86_64: Final = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 8: "lseek", 16: "ioctl",
    17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 34: "pause", 35: "nanosleep",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl",
    73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 82: "rename", 83: "mkdir", 87: "unlink", 137: "statfs",
    162: "sync", 202: "futex", 208: "io_getevents", 217: "getdents64", 230: "clock_nanosleep", 231: "exit_group",
    232: "epoll_wait", 247: "waitid", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 267: "readlinkat", 269: "faccessat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev", 316: "renameat2", 332: "statx",
    426: "io_uring_enter", 439: "faccessat2",
}  # fmt: skip
"""arch/x86/entry/syscalls/syscall_64.tbl of Linux."""
_GENERIC: Final = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
    38: "renameat", 43: "statfs", 46: "ftruncate", 47: "fallocate", 48: "faccessat", 56: "openat", 57: "close",
    61: "getdents64", 62: "lseek", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64",
    69: "preadv", 70: "pwritev", 72: "pselect6", 73: "ppoll", 78: "readlinkat", 79: "newfstatat", 80: "fstat",
    81: "sync", 82: "fsync", 83: "fdatasync", 94: "exit_group", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg",
    212: "recvmsg", 242: "accept4", 260: "wait4", 276: "renameat2", 291: "statx", 426: "io_uring_enter",
    439: "faccessat2",
}  # fmt: skip
"""include/uapi/asm-generic/unistd.h of Linux, for the architectures that use it."""
_TABLES: Final = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}


def name_of(number: int) -> str:
    """Return the name of a system call of this machine, or "" if it is not in the tables above."""
    return _TABLES.get(platform.machine(), {}).get(number, "")
