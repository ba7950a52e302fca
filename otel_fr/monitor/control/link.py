"""The socket to the rank: one JSON object per line, in both directions."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from typing import Any

MAX_LINE = 4 << 20
"""A rank with thousands of threads has large stacks; a longer line is discarded."""


class Link:
    """The monitor's end. Never blocks; a broken connection counts as closed.

    Attributes:
        fd: to poll; None once the rank has closed its end.
    """

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._packets = self._socket.type in (socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)
        self._buffer = bytearray()
        self.fd: int | None = fd
        with contextlib.suppress(OSError):
            _continue_at(fd)

    def send(self, message: dict[str, Any]) -> bool:
        """Send one message. False if it cannot be sent: the rank has ended, or does not read."""
        if self._socket is None:
            return False
        data = json.dumps(message).encode() + b"\n"
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; lines that are not JSON objects are ignored."""
        messages: list[dict[str, Any]] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(1 << 20 if self._packets else 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._buffer += data
            if self._packets and not data.endswith(b"\n"):
                self._buffer += b"\n"
            if len(self._buffer) > MAX_LINE:
                self._buffer.clear()
            messages += self._lines()
        return messages

    def _lines(self) -> list[dict[str, Any]]:
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        found: list[dict[str, Any]] = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
        self.fd = None


def _continue_at(fd: int) -> None:
    """Have the kernel continue this process, if somebody has stopped it, when something happens at the socket.

    While it is stopped, nothing but the rank's end does: that closes the socket. A monitor that is still stopped then
    would keep the pipe of the job's output open, and whoever reads that to its end would wait (fcntl(2), F_SETSIG).

    Raises:
        OSError: the kernel has no signals for this kind of socket.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
