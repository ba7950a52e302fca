"""The store's queries, which are the same for all databases, and the conversion of rows to incidents, runs and jobs."""

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
"""What reading a row may raise if the row is damaged, or was not written by any version of otel-fr."""


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
_CONSEQUENCES = """
    SELECT id FROM otel_fr.incidents WHERE cause = :id AND job = :job AND attempt = :attempt AND run = :run
    ORDER BY detected LIMIT :limit
"""
_FINISHED = """
    SELECT id, job, ended, summary FROM otel_fr.jobs
    WHERE (CAST(:before AS double precision) IS NULL OR ended < :before) AND substr(job, 1, length(:prefix)) = :prefix
    ORDER BY ended DESC LIMIT :limit
"""
_JOB = "SELECT id, job, ended, summary, detail FROM otel_fr.jobs WHERE id = :id"


class StoredRows(Backend):
    """A database with its queries. They may be called from any thread, and may raise one of ``errors``.

    An unreadable row is counted, logged and left out.
    """

    @abstractmethod
    def _rows(self, query: str, given: dict[str, Any], max_size: int | None = None) -> list[Any]:
        """Return the rows of a query in SQL that all databases understand. May raise one of ``errors``.

        Args:
            query: has ``:name`` for each value in ``given``.
            max_size: as in `find`, applied to the first column.
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
        """Find incidents as last published: the newest ``limit`` matching ones, oldest first.

        Args:
            before: only incidents that were detected before this Unix time.
            prefix: only incidents of jobs whose name begins with it.
            folded: leave out consequences whose cause matches the job and state, too.
            max_size: stop reading once the JSON has more than this many characters. None: read all.
        """
        given = {"job": job, "state": state, "before": before, "prefix": prefix, "folded": int(folded)}
        return self._published(self._rows(_FIND, {**given, "limit": min(limit, MAX_PAGE)}, max_size))

    @abstractmethod
    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        """Count the consequences of each of these incidents."""

    def consequences(self, cause: CollectorIncidentData) -> list[str]:
        """Find the ids of an incident's consequences, oldest first."""
        run = {"job": cause["job"], "attempt": cause["attempt"], "run": cause["run_id"]}
        return [number for (number,) in self._rows(_CONSEQUENCES, {"id": cause["id"], **run, "limit": MAX_PAGE})]

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        """Find an incident, as last published, by its id. Its job's name must begin with ``prefix``."""
        return next(iter(self._published(self._rows(_GET, {"id": number, "prefix": prefix}))), None)

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        """Find rows of jobs, without their ``detail``: the newest ``limit`` matching ones, newest first.

        Args:
            before: only jobs whose last telemetry came before this Unix time.
            prefix: only jobs whose name begins with it.
        """
        rows = self._rows(_FINISHED, {"before": before, "prefix": prefix, "limit": min(limit, MAX_PAGE)})
        return self._finished((*row, b"") for row in rows)

    def finished_job(self, key: str) -> FinishedJob | None:
        """Find a job by its key in URLs."""
        return next(iter(self._finished(self._rows(_JOB, {"id": key}))), None)

    def _saved(
        self,
        incidents: Iterable[tuple[str, str]],
        runs: Iterable[tuple[str]],
        notes: Iterable[tuple[str, str, str]],
    ) -> Saved:
        """Convert rows to incidents, runs and notes. Notes on other incidents are left out.

        Args:
            incidents: the columns ``memory`` and ``data``.
            runs: the column ``memory``.
            notes: the columns outlet, incident and value.
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
        """Convert rows of ``data``, ``state`` and ``memory`` to incidents, in reversed order."""
        found = []
        for row in reversed(rows):
            with self._skip_unreadable("incident"):
                found.append(published_row(*row))
        return found

    def _finished(self, rows: Iterable[tuple[str, str, float, str, bytes]]) -> list[FinishedJob]:
        """Convert rows with the columns of `FinishedJob` to jobs, in the same order."""
        found = []
        for row in rows:
            with self._skip_unreadable("job"):
                found.append(finished_row(*row))
        return found

    @contextlib.contextmanager
    def _skip_unreadable(self, what: str) -> Iterator[None]:
        """Count and log an unreadable row, so that the other rows can still be read."""
        try:
            yield
        except _OF_ANOTHER_FORM as error:
            self._metrics.errors.labels("store").inc()
            _log.error("%s: skipping an unreadable %s: %r", self._where, what, error)


def up_to(rows: Iterable[tuple[str, str, str]], max_size: int | None) -> list[tuple[str, str, str]]:
    """Return the first rows, up to the one at which their first columns exceed ``max_size`` characters. None: all."""
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += len(row[0])
        if max_size is not None and size > max_size:
            break
    return found


def finished_row(key: str, job: str, ended: float, summary: str, detail: bytes) -> FinishedJob:
    """Convert a row to its job.

    Raises:
        ValueError, TypeError, gzip.BadGzipFile, EOFError, zlib.error: the row has another form.
    """
    if not isinstance(load_json(summary), dict):
        raise TypeError("the summary is not a JSON object")
    if detail:
        gzip.decompress(detail)
    return FinishedJob(key, job, ended, summary, detail)


def published_row(data: str, state: str, memory: str) -> CollectorIncidentData:
    """Convert a row to its incident, as published.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the row has another form; or it is open and `load_incident`
            cannot read it, so the collector does not know the incident and would never resolve it.
    """
    if state == FIRING:
        return load_incident(load_json(memory), load_json(data)).data
    return typed(CollectorIncidentData, load_json(data))
