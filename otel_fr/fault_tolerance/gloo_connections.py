"""Finds the TCP connections of gloo's process groups in /proc, and shuts them down.

Shutting them down from another thread ends the calls that wait on them: each raises "Connection closed by peer" within
milliseconds. ``ProcessGroup.abort()`` does nothing in gloo (torch 2.13, 2.14).

Each gloo process group has a device, and each device has an epoll instance with the device's listening socket, a pipe
and all its connections (gloo/transport/tcp/device.cc, loop.cc). So a device that appears while a group is created
belongs to this group. Connections that gloo makes later (``TORCH_GLOO_LAZY_INIT=1``) are found, too. The inode of its
listening socket identifies a device: Linux soon reuses the numbers of closed descriptors.
This module imports only the standard library. It does nothing where there is no /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

_EPOLL: Final = "anon_inode:[eventpoll]"
_TARGET: Final = re.compile(
    r"^tfd:\s*(\d+)\s+events:\s*[0-9a-f]+\s+data:\s*([0-9a-f]+)(?:.*\bino:([0-9a-f]+))?", re.MULTILINE
)
"""Matches a watched descriptor in the ``/proc/PID/fdinfo`` of an epoll instance: proc_pid_fdinfo(5)."""


class _Target(NamedTuple):
    """A descriptor that an epoll instance watches. ``inode`` identifies the file that was added; 0: unknown."""

    fd: int
    data: int
    inode: int


def _epolls() -> Iterator[int]:
    """Yield the descriptors of this process that are epoll instances."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == _EPOLL:
                    yield int(name)


def _targets(epoll: int) -> list[_Target]:
    try:
        with open(f"/proc/self/fdinfo/{epoll}", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return [_Target(int(fd), int(data, 16), int(inode or "0", 16)) for fd, data, inode in _TARGET.findall(text)]


def devices(known: Collection[int] = ()) -> dict[int, int]:
    """Return gloo's devices: the inode of the listening socket, and the descriptor of the epoll instance.

    Args:
        known: such inodes. A group has a connection for each member, and this saves a look at each of them.
    """
    found = {_listening_socket(epoll, known): epoll for epoll in _epolls()}
    found.pop(0, None)
    return found


def _listening_socket(epoll: int, known: Collection[int]) -> int:
    """Return the inode of the listening socket that a device's epoll instance watches; 0: it is not of gloo.

    Gloo's also watches a pipe, and identifies its descriptors by addresses. Python, libuv and others identify them by
    descriptor numbers.
    """
    targets = _targets(epoll)
    if own := next((target.inode for target in targets if target.inode in known), 0):
        return own
    has_pipe, inode = False, 0
    for target in targets:
        if target.data in (target.fd, 0):
            return 0
        with contextlib.suppress(OSError):
            has_pipe = has_pipe or stat.S_ISFIFO(os.fstat(target.fd).st_mode)
        with _opened(target) as connection, contextlib.suppress(OSError):
            if connection is not None and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                inode = os.fstat(connection.fileno()).st_ino
    return inode if has_pipe else 0


@contextlib.contextmanager
def _opened(target: _Target) -> Iterator[socket.socket | None]:
    """Yield the TCP socket, on a duplicated descriptor. None: it is no TCP socket, or no longer the watched one."""
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
    """Knows the devices of each process group."""

    def __init__(self) -> None:
        self._before: Collection[int] = ()
        self._of_group: dict[str, tuple[int, ...]] = {}

    def begin(self) -> None:
        """Note that this thread is about to create a process group."""
        self._before = devices(self._before)

    def created(self, name: str) -> None:
        """Note that the process group has been created. ``name`` is c10d's name."""
        new = set(devices(self._before)).difference(self._before, *self._of_group.values())
        if new:
            self._of_group[name] = (*self._of_group.get(name, ()), *new)

    def gone(self, name: str | None) -> None:
        """Forget a group that was destroyed, or all groups (None)."""
        if name is None:
            self._of_group.clear()
        else:
            self._of_group.pop(name, None)

    def shut_down(self, name: str) -> int:
        """Shut down the connections of a group. Return their number; 0: none is known."""
        count, found = 0, devices(self._before)
        for epoll in [found[device] for device in self._of_group.get(name, ()) if device in found]:
            for target in _targets(epoll):
                with _opened(target) as connection:
                    if connection is None:
                        continue
                    with contextlib.suppress(OSError):
                        connection.getpeername()  # a listening socket has none
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count
