"""The file of incidents: JSON lines."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)


class IncidentsFile:
    """Writes one JSON line for each change of each incident, before the change is published elsewhere.

    The path may be a named pipe. Neither the start nor a write waits for the pipe's reader.

    Raises:
        OSError: the file cannot be opened, or no process reads the pipe.
    """

    def __init__(self, path: Path, metrics: Metrics) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise OSError(errno.ENXIO, "no process reads this pipe or socket; start the reader first") from error
            raise
        self._path = path
        self._metrics = metrics
        self._rest = b""
        """The unwritten rest of a line. It is written first, so that the next line begins on its own."""
        self.problem = ""
        """Why the last line could not be written. Empty: it was written."""
        self._log = Throttle()

    def write(self, data: CollectorIncidentData) -> None:
        """Append one line. If the disk or the pipe is full, the line is lost."""
        line = json.dumps(data).encode() + b"\n"
        try:
            self._rest = self._write(self._rest)
            if self._rest:
                raise BlockingIOError(errno.EAGAIN, "an earlier line is not complete")
            self._rest = self._write(line)
            if self._rest:
                self._rest = self._write(self._rest)  # raises the error that prevented a complete write
        except (OSError, ValueError) as error:
            if isinstance(error, BrokenPipeError):
                self._rest = b""  # the next reader begins with a complete line
            self.problem = str(error)
            self._metrics.errors.labels("incidents_file").inc()
            if self._log.allows():
                _log.error("could not write an incident to %s: %s", self._path, error)
        else:
            self.problem = ""

    def _write(self, data: bytes) -> bytes:
        """Write data. Return the part that was not written.

        Raises:
            OSError: nothing was written.
        """
        return data[os.write(self._file, data) :] if data else b""

    def close(self) -> None:
        try:
            os.close(self._file)
        except OSError as error:
            _log.error("%s: %s", self._path, error)
