"""Rows of the store, as any of its databases returns them, as what they stand for."""

from __future__ import annotations

import contextlib
import gzip
import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from otel_fr.encodable import load_json
from otel_fr.incident import CollectorIncidentData
from otel_fr.typed_json import typed
from otel_fr_collector.incidents.incident import FIRING
from otel_fr_collector.storage.backend import MAX_PAGE, Backend, Saved
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.serialization import load_incident, load_run

_log = logging.getLogger(__name__)

_OF_ANOTHER_FORM = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(gzip.BadGzipFile, EOFError, zlib.error),
)
"""What reading a row raises that no version of otel-fr has written, or that is damaged."""


_FIND = """
    SELECT data, state, memory FROM otel_fr.incidents AS one
    WHERE (CAST(:job AS text) IS NULL OR job = :job) AND (CAST(:state AS text) IS NULL OR state = :state)
    AND (CAST(:before AS double precision) IS NULL OR detected < :before) AND substr(job, 1, length(:prefix)) = :prefix
    AND (:folded = 0 OR NOT EXISTS (
        SELECT 1 FROM otel_fr.incidents AS cause WHERE cause.id = one.cause
        AND cause.job = one.job AND cause.attempt = one.attempt AND cause.run = one.run
        AND (CAST(:state AS text) IS NULL OR cause.state = :state)))
    ORDER BY detected DESC LIMIT :limit
"""
_GET = """
    SELECT data, state, memory FROM otel_fr.incidents WHERE id = :id AND substr(job, 1, length(:prefix)) = :prefix
    ORDER BY detected DESC LIMIT 1
"""
_FINISHED = """
    SELECT id, job, ended, summary FROM otel_fr.jobs
    WHERE (CAST(:before AS double precision) IS NULL OR ended < :before) AND substr(job, 1, length(:prefix)) = :prefix
    ORDER BY ended DESC LIMIT :limit
"""
_JOB = "SELECT id, job, ended, summary, detail FROM otel_fr.jobs WHERE id = :id"


class StoredRows(Backend):
    """Its queries, which may be called from any thread and raise one of ``errors``.

    A row that cannot be read is counted, logged and left out.
    """

    @abstractmethod
    def _rows(self, query: str, given: dict[str, Any], max_size: int | None = None) -> list[Any]:
        """The rows of a query in the SQL that all databases have, with ``:name`` for a value; raises one of ``errors``.

        Args:
            max_size: as of `find`, of the rows' first columns.
        """

    def find(
        self,
        *,
        job: str | None,
        state: str | None,
        before: float | None = None,
        prefix: str = "",
        limit: int = MAX_PAGE,
        max_size: int | None = None,
        folded: bool = False,
    ) -> list[CollectorIncidentData]:
        """Incidents as last published, the newest ``limit`` of those that fit, oldest first.

        Args:
            before: only those detected before this Unix time.
            prefix: only incidents of jobs whose name begins with it.
            folded: no consequence whose cause fits the job and state, too.
            max_size: no further ones are read once their JSON has so many characters; None: all.
        """
        given = {"job": job, "state": state, "before": before, "prefix": prefix, "folded": int(folded)}
        return self._published(self._rows(_FIND, {**given, "limit": min(limit, MAX_PAGE)}, max_size))

    @abstractmethod
    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        """How many incidents follow from each of these."""

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        """The incident with that id, as last published, of a job whose name begins with ``prefix``."""
        return next(iter(self._published(self._rows(_GET, {"id": number, "prefix": prefix}))), None)

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        """Jobs that are over, without their ``detail``: the newest ``limit`` of those that fit, newest first.

        Args:
            before: only those that ended before this Unix time.
            prefix: only those whose name begins with it.
        """
        rows = self._rows(_FINISHED, {"before": before, "prefix": prefix, "limit": min(limit, MAX_PAGE)})
        return self._finished((*row, b"") for row in rows)

    def finished_job(self, key: str) -> FinishedJob | None:
        """The job of that name in URLs."""
        return next(iter(self._finished(self._rows(_JOB, {"id": key}))), None)

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
