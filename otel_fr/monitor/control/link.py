"""The socket to the rank: each packet is one JSON object, in both directions."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from typing import Any

MAX_PACKET = 1 << 20
"""Bytes that are read of a packet; the kernel allows less (net.core.wmem_max)."""


class Link:
    """The monitor's end. Never blocks; a broken connection counts as closed.

    Attributes:
        fd: to poll; None once the rank has closed its end.
    """

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self.fd: int | None = fd
        with contextlib.suppress(OSError):
            _continue_at(fd)

    def send(self, message: dict[str, Any]) -> bool:
        """Send one message. False if it cannot be sent: the rank has ended, or does not read."""
        if self._socket is None:
            return False
        data = json.dumps(message).encode()
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; packets that are not JSON objects are ignored."""
        messages: list[dict[str, Any]] = []
        while self._socket is not None:
            try:
                packet = self._socket.recv(MAX_PACKET)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self.close()
                break
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(packet)
                if isinstance(value, dict):
                    messages.append(value)
        return messages

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
