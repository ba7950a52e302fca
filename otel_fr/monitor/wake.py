"""Ends the wait of a loop that also waits for sockets: from another thread, or from a signal handler."""

from __future__ import annotations

import contextlib
import socket


class Wake:
    """A socket pair. The loop waits until `fileno` can be read, and then calls `clear`."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)

    def fileno(self) -> int:
        """Of the end to wait for; -1 after `close`."""
        return self._reading.fileno()

    @property
    def writing(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._writing.fileno()

    def set(self) -> None:
        """End the wait, or the next one. From any thread; does nothing after `close`."""
        with contextlib.suppress(OSError):
            self._writing.send(b"!")

    def clear(self) -> None:
        """Forget what was set so far."""
        with contextlib.suppress(OSError):
            self._reading.recv(4096)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
