"""Faults of the collector itself, in one part, that must not stop the parts after it: counted and logged."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from otel_fr_collector.metrics import Metrics

_log = logging.getLogger(__name__)

LOG_EVERY = 60.0
"""Seconds between two logged faults of one kind; a fault of every incident change would fill the log."""


class Faults:
    """Where faults are counted, and when each kind was last logged."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: dict[str, float] = {}

    @contextlib.contextmanager
    def caught(self, part: str, what: str) -> Iterator[None]:
        """Count any exception of the block, log it with its stack, and go on after the block.

        Args:
            part: the label in ``otel_fr_collector_internal_errors``.
            what: what has failed, as a sentence; one of few, because each is logged by itself.
        """
        try:
            yield
        except Exception:  # noqa: BLE001  that is what this is for
            self._metrics.errors.labels(part).inc()
            now = time.monotonic()
            if now - self._logged.get(what, float("-inf")) >= LOG_EVERY:
                self._logged[what] = now
                _log.exception("%s", what)
