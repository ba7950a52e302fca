"""Rows of the store, as any of its databases returns them, as what they stand for."""

from __future__ import annotations

import contextlib
import gzip
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence

from otel_fr.encodable import load_json
from otel_fr.incident import CollectorIncidentData
from otel_fr.typed_json import typed
from otel_fr_collector.incidents.incident import FIRING
from otel_fr_collector.storage.backend import Backend, Saved
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.serialization import load_incident, load_run

_log = logging.getLogger(__name__)

_OF_ANOTHER_FORM = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(gzip.BadGzipFile, EOFError, zlib.error),
)
"""What reading a row raises that no version of otel-fr has written, or that is damaged."""


class StoredRows(Backend):
    """Reads rows; one that cannot be read is counted, logged and left out."""

    def _saved(
        self,
        incidents: Iterable[tuple[str, str]],
        runs: Iterable[tuple[str]],
        notes: Iterable[tuple[str, str, str]],
    ) -> Saved:
        """What these rows hold.

        Args:
            incidents: ``memory`` and ``data`` of each. runs: ``memory`` of each. notes: outlet, incident and value.
        """
        saved = Saved()
        for memory, data in incidents:
            with self._skip_unreadable("incident"):
                saved.incidents.append(load_incident(load_json(memory), load_json(data)))
        saved.incidents.sort(key=lambda incident: incident.detected)
        for (text,) in runs:
            with self._skip_unreadable("run"):
                saved.runs.append(load_run(load_json(text)))
        known = {incident.id for incident in saved.incidents}
        saved.notes = {(outlet, number): value for outlet, number, value in notes if number in known}
        return saved

    def _published(self, rows: Sequence[tuple[str, str, str]]) -> list[CollectorIncidentData]:
        """What rows of ``data``, ``state`` and ``memory`` show, in the opposite order."""
        found = []
        for row in reversed(rows):
            with self._skip_unreadable("incident"):
                found.append(published_row(*row))
        return found

    def _finished(self, rows: Iterable[tuple[str, str, float, str, bytes]]) -> list[FinishedJob]:
        """The jobs of rows with the columns of `FinishedJob`, in their order."""
        found = []
        for row in rows:
            with self._skip_unreadable("job"):
                found.append(finished_row(*row))
        return found

    @contextlib.contextmanager
    def _skip_unreadable(self, what: str) -> Iterator[None]:
        """One row that cannot be read must not cost the others."""
        try:
            yield
        except _OF_ANOTHER_FORM as error:
            self._metrics.errors.labels("store").inc()
            _log.error("%s: skipping an unreadable %s: %r", self._where, what, error)


def up_to(rows: Iterable[tuple[str, str, str]], max_size: int | None) -> list[tuple[str, str, str]]:
    """The first rows, until their first columns have more than so many characters together; None: all."""
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += len(row[0])
        if max_size is not None and size > max_size:
            break
    return found


def finished_row(key: str, job: str, ended: float, summary: str, detail: bytes) -> FinishedJob:
    """What a row says of its job.

    Raises:
        ValueError, TypeError, gzip.BadGzipFile, EOFError, zlib.error: it is of another form.
    """
    if not isinstance(load_json(summary), dict):
        raise TypeError("the summary is not a JSON object")
    if detail:
        gzip.decompress(detail)
    return FinishedJob(key, job, ended, summary, detail)


def published_row(data: str, state: str, memory: str) -> CollectorIncidentData:
    """What a row shows of its incident.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is of another form, or open and `load_incident` cannot
            read it: the collector does not know of it and would never resolve it.
    """
    if state == FIRING:
        return load_incident(load_json(memory), load_json(data)).data
    return typed(CollectorIncidentData, load_json(data))
