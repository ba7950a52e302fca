"""The socket to the rank. In both directions, each packet is one JSON object."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
from typing import Any

MAX_PACKET = 1 << 20
"""Most bytes read of a packet. The kernel allows less (net.core.wmem_max)."""


class Link:
    """The monitor's end of the socket. Never blocks. A broken connection counts as closed.

    Attributes:
        fd: descriptor to poll; None once the rank has closed its end.
    """

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self.fd: int | None = fd
        with contextlib.suppress(OSError):
            _continue_at(fd)

    def send(self, message: dict[str, Any]) -> bool:
        """Send one message. Return False if it is too long, or the rank has ended or does not read."""
        if self._socket is None:
            return False
        data = json.dumps(message).encode()
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                self.close()
            return False

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived. Packets that are not JSON objects are ignored."""
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
    """Make the kernel continue this process, if it is stopped, on activity at the socket (fcntl(2), F_SETSIG).

    The socket closes when the rank ends. A monitor that stayed stopped would keep the pipe of the job's output open,
    and a reader of this pipe would wait forever.

    Raises:
        OSError: the kernel has no signals for this kind of socket.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
