"""Ends the process in time, whatever hangs. The time counts from the signal."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import NoReturn

from otel_fr_collector import output

_log = logging.getLogger(__name__)

MARGIN = 0.2
"""Seconds reserved for the exit, or this share of the time to stop if that is less."""
LOG_SECONDS = 0.1
"""Seconds for the last message: the reader of standard error may hang, too."""


def leave(status: int) -> NoReturn:
    """End the process now, without waiting for threads. The caller has closed or given up everything else."""
    output.drain()
    os._exit(status)


class Ending:
    """Ends the process when its time to stop is over.

    Args:
        seconds: from `begin` to the end of the process.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="otel-fr ending", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start the clock, unless it is running. A signal handler may call this, because it takes no lock."""
        if self._end is None:
            self._end = time.monotonic() + self._seconds - min(MARGIN, MARGIN * self._seconds)
            os.write(self._write, b"x")

    def left(self, share: float = 1.0) -> float:
        """Seconds left of the first ``share`` of the time, at least 0. Starts the clock if it is not running."""
        self.begin()
        assert self._end is not None
        return max(0.0, self._end - (1 - share) * self._seconds - time.monotonic())

    def _watch(self) -> None:
        os.read(self._read, 1)
        time.sleep(self.left())
        message = threading.Thread(target=self._say, daemon=True)
        message.start()
        message.join(min(LOG_SECONDS, MARGIN * self._seconds / 2))
        os._exit(0)

    def _say(self) -> None:
        _log.error("--stop-seconds elapsed: exiting with work still pending")
        output.drain()
