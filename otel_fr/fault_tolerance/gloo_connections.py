"""The TCP connections of gloo's process groups, found through the kernel, and how they are shut down.

Shutting them down from another thread ends the calls that wait on them: each raises "Connection closed by peer" within
milliseconds. ``ProcessGroup.abort()`` does nothing in gloo (torch 2.13, 2.14).

Each gloo process group has a device, and each device an epoll instance of its own that has the device's listening
socket, a pipe and all its connections (gloo/transport/tcp/device.cc, loop.cc). So what appears while a group is
created belongs to it, and connections that gloo makes later (``TORCH_GLOO_LAZY_INIT=1``) are found, too.
Imports nothing but the standard library; does nothing where there is no /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

_EPOLL: Final = "anon_inode:[eventpoll]"
_TARGET: Final = re.compile(
    r"^tfd:\s*(\d+)\s+events:\s*[0-9a-f]+\s+data:\s*([0-9a-f]+)(?:.*\bino:([0-9a-f]+))?", re.MULTILINE
)
"""A descriptor in the ``/proc/PID/fdinfo`` of an epoll instance: proc_pid_fdinfo(5)."""


class _Target(NamedTuple):
    """A descriptor that an epoll instance watches. ``inode`` identifies what it was when it was added; 0: not known."""

    fd: int
    data: int
    inode: int


def epolls() -> frozenset[int]:
    """The descriptors of this process that are epoll instances."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == _EPOLL:
                    found.add(int(name))
    return frozenset(found)


def _targets(epoll: int) -> list[_Target]:
    try:
        with open(f"/proc/self/fdinfo/{epoll}", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return [_Target(int(fd), int(data, 16), int(inode or "0", 16)) for fd, data, inode in _TARGET.findall(text)]


def _is_gloos(epoll: int) -> bool:
    """It has a pipe and a listening socket, and knows them by addresses (Python, libuv and others: by descriptors)."""
    has_pipe = listens = False
    for target in _targets(epoll):
        if target.data in (target.fd, 0):
            return False
        with contextlib.suppress(OSError):
            has_pipe = has_pipe or stat.S_ISFIFO(os.fstat(target.fd).st_mode)
        with _opened(target) as connection:
            if connection is not None:
                with contextlib.suppress(OSError):
                    listens = listens or bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return has_pipe and listens


@contextlib.contextmanager
def _opened(target: _Target) -> Iterator[socket.socket | None]:
    """The TCP socket, through a descriptor of our own; None: it is none, or no longer the one that was watched."""
    connection: socket.socket | None = None
    with contextlib.suppress(OSError):
        copy = os.dup(target.fd)
        try:
            kind = os.fstat(copy)
            if stat.S_ISSOCK(kind.st_mode) and target.inode in (0, kind.st_ino):
                connection = socket.socket(fileno=copy)
        finally:
            if connection is None:
                os.close(copy)
    if connection is not None and connection.family not in (socket.AF_INET, socket.AF_INET6):
        connection.close()
        connection = None
    try:
        yield connection
    finally:
        if connection is not None:
            connection.close()


class GlooConnections:
    """Which epoll instances belong to which process group."""

    def __init__(self) -> None:
        self._before: frozenset[int] = frozenset()
        self._of_group: dict[str, tuple[int, ...]] = {}

    def begin(self) -> None:
        """A process group is about to be created, by this thread."""
        self._before = epolls()

    def created(self, name: str) -> None:
        """It has been created. ``name``: c10d's."""
        known = {epoll for own in self._of_group.values() for epoll in own}
        new = [epoll for epoll in sorted(epolls() - self._before - known) if _is_gloos(epoll)]
        if new:
            self._of_group[name] = (*self._of_group.get(name, ()), *new)

    def gone(self, name: str | None) -> None:
        """The group was destroyed; None: all were."""
        if name is None:
            self._of_group.clear()
        else:
            self._of_group.pop(name, None)

    def shut_down(self, name: str) -> int:
        """Shut the connections of a group down. Returns how many there were; 0: none is known."""
        count = 0
        for epoll in epolls().intersection(self._of_group.get(name, ())):
            for target in _targets(epoll):
                with _opened(target) as connection:
                    if connection is None:
                        continue
                    with contextlib.suppress(OSError):
                        connection.getpeername()  # a listening socket has none
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count
