"""The file of incidents: JSON lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)


class IncidentsFile:
    """One JSON line for each change of each incident, written before the change is published elsewhere.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, metrics: Metrics) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._metrics = metrics
        self._log = Throttle()

    def write(self, data: CollectorIncidentData) -> None:
        """Append one line. If the disk is full, the line is lost."""
        try:
            self._file.write(json.dumps(data) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self._metrics.errors.labels("incidents_file").inc()
            if self._log.allows():
                _log.error("an incident could not be written to %s: %s", self._file.name, error)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            _log.error("%s: %s", self._file.name, error)
