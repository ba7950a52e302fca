"""The rank's standard error, which the monitor keeps open for the verdict after the rank has ended."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from otel_fr.monitor import logs

HOLD_SECONDS = 30.0
"""Longest time for which a rank's standard error stays open for the verdict, if it is a pipe. The verdict takes a
second on an idle machine, and a busy machine gets more time. The job itself is not delayed."""


class Stderr:
    """The rank's standard error, which stays open for the verdict for at most `HOLD_SECONDS` after the rank's end."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + HOLD_SECONDS
        self._lock = threading.Lock()
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            self._handle = os.dup(2)
        self._timer = threading.Timer(HOLD_SECONDS, self.close)
        self._timer.daemon = True
        self._timer.start()

    def left(self) -> float:
        """Return the seconds until it is closed."""
        return self._deadline - time.monotonic()

    def write(self, line: str) -> None:
        """Write a line, unless standard error is closed. If the reader does not read, this blocks until the close."""
        with self._lock:
            if self._handle is not None:
                data = line.encode("utf-8", "replace")[: select.PIPE_BUF - 1]
                with contextlib.suppress(OSError):
                    logs.write(self._handle, data + b"\n", self.left())

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    os.close(self._handle)
                self._handle = None
