"""Counts and logs faults in one part of the collector, so that they do not stop the parts after it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from otel_fr_collector.metrics import Metrics
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)


class Faults:
    """Counts faults in the metrics, and logs each kind of fault once a minute."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = Throttle()

    @contextlib.contextmanager
    def caught(self, part: str, what: str) -> Iterator[None]:
        """Count any exception of the block, log it with its stack, and continue after the block.

        Args:
            part: the label in ``otel_fr_collector_internal_errors``.
            what: what has failed, as a sentence. Use few different sentences, because each is logged separately.
        """
        try:
            yield
        except Exception:  # noqa: BLE001  that is what this is for
            self._metrics.errors.labels(part).inc()
            if self._log.allows(what):
                _log.exception("%s", what)
