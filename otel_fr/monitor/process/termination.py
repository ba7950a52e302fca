"""Ends an overdue rank, so that its launcher acts: with SIGTERM, and with SIGKILL if it does not end in time."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Final

from otel_fr.monitor.process.ending import RankProcess

_log = logging.getLogger("otel_fr.monitor")

FILE_SECONDS: Final = 5.0
"""Longest wait for the flight-recorder file before the first signal."""


class Termination:
    """Ends one rank. The watch loop calls `step`. No method blocks. Times are monotonic seconds.

    If the rank continues, or ends on its own, before the first signal, no signal is sent.
    """

    def __init__(self, process: RankProcess, grace: float) -> None:
        """``grace``: seconds between the two signals."""
        self._process = process
        self._grace = grace
        self._wanted_at: float | None = None
        self._signalled_at: float | None = None
        self._has_begun = False

    def want(self, now: float) -> None:
        """Request the end of the rank."""
        if not self._has_begun and self._wanted_at is None:
            self._wanted_at = now

    def step(self, now: float, *, is_overdue: bool, is_writing: bool, announce: Callable[[], None]) -> None:
        """Send the signal that is due, if any.

        Args:
            is_overdue: True if the rank is still overdue.
            is_writing: True while its flight-recorder file is being written.
            announce: called before the first signal.
        """
        if self._has_begun:
            self._kill_if_due(now)
        elif self._wanted_at is not None:
            if not is_overdue or not self._process.alive():
                self._wanted_at = None
            elif not is_writing or now - self._wanted_at >= FILE_SECONDS:
                self._begin(now, announce)

    def _begin(self, now: float, announce: Callable[[], None]) -> None:
        self._wanted_at = None
        self._has_begun = True
        if not self._process.send_signal(0):  # signal 0 only tests whether a signal could be sent
            _log.error(
                "this rank is overdue, but cannot be ended: its process has ended, or cannot be signalled safely"
            )
            return
        announce()
        if self._process.send_signal(signal.SIGTERM):
            self._signalled_at = now
            _log.warning("this rank is overdue: sent SIGTERM; SIGKILL follows in %g s", self._grace)

    def _kill_if_due(self, now: float) -> None:
        if self._signalled_at is None or now - self._signalled_at < self._grace:
            return
        self._signalled_at = None
        if self._process.send_signal(signal.SIGKILL):
            _log.warning("this rank did not end in %g s: sent SIGKILL", self._grace)
