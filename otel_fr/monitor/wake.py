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
        """Return the descriptor to wait for; -1 after `close`."""
        return self._reading.fileno()

    @property
    def writing(self) -> int:
        """Descriptor for `signal.set_wakeup_fd`."""
        return self._writing.fileno()

    def set(self) -> None:
        """End the present or the next wait. May be called on any thread. Does nothing after `close`."""
        with contextlib.suppress(OSError):
            self._writing.send(b"!")

    def clear(self) -> None:
        """Undo earlier calls of `set`."""
        with contextlib.suppress(OSError):
            self._reading.recv(4096)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
