"""The statements that write to PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psycopg
from psycopg import errors

from otel_fr_collector.storage.batch import Batch, IncidentRow
from otel_fr_collector.storage.postgres_connection import Connection
from otel_fr_collector.storage.postgres_migrations import PRUNE_LOCK
from otel_fr_collector.storage.postgres_reading import as_text, run_key
from otel_fr_collector.storage.retention import Retention

_log = logging.getLogger(__name__)

_NEVER_FITS = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded, UnicodeError)
"""Errors of a row that the server will never accept, for example because a name is too long for an index."""

_INCIDENT = """
    INSERT INTO otel_fr.incidents AS known VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, now(), %s, now())
    ON CONFLICT (id, job, attempt, run) DO UPDATE SET state = excluded.state, category = excluded.category,
    cause = excluded.cause, detected = excluded.detected, changed = excluded.changed, data = excluded.data,
    memory = excluded.memory, written = now(), collector = excluded.collector, kept = now()
    WHERE known.changed <= excluded.changed
"""
_OWN_OR_NEWER = _INCIDENT + "OR known.collector = excluded.collector"
"""Writes a collector's own changes even if its clock was set back."""
_RUN = """
    INSERT INTO otel_fr.runs VALUES (%s, %s, %s, %s)
    ON CONFLICT (job, attempt, run) DO UPDATE SET memory = excluded.memory
"""
_DROP_RUN = "DELETE FROM otel_fr.runs WHERE job = %s AND attempt = %s AND run = %s"
_NOTE = (
    "INSERT INTO otel_fr.notes VALUES (%s, %s, %s) ON CONFLICT (outlet, incident) DO UPDATE SET value = excluded.value"
)
_JOB = """
    INSERT INTO otel_fr.jobs VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE
    SET ended = excluded.ended, summary = excluded.summary, detail = excluded.detail
    WHERE jobs.ended <= excluded.ended + 1
"""
"""A collector that no longer receives a job's telemetry must not replace a newer row. Clocks may be adjusted by a
second."""


def write(connection: Connection, batch: Batch, collector: str, *, late: bool = False) -> None:
    """Write a batch in one transaction. A row that the server will never accept is logged and left out.

    Args:
        collector: the id of the collector that continues the incidents.
        late: the rows have waited for the server, so none replaces a newer row, whoever wrote it.

    Raises:
        psycopg.Error: the server does not accept rows now.
    """
    try:
        with connection.transaction():
            _write(connection, batch, collector, late=late)
            return
    except _NEVER_FITS:
        pass  # writing the rows one by one shows which row it is
    for one in _apart(batch):
        try:
            with connection.transaction():
                _write(connection, one, collector, late=late)
        except _NEVER_FITS as error:
            _log.error("the --store database rejected a row; skipping it: %s", error)


def _write(connection: Connection, batch: Batch, collector: str, *, late: bool) -> None:
    with connection.cursor() as cursor:
        rows = [(*map(as_text, row), collector) for row in sorted(batch.incidents.values(), key=_order)]
        if rows:
            cursor.executemany((_INCIDENT if late else _OWN_OR_NEWER).encode(), rows)
        kept = [(*run_key(run), memory) for run, memory in batch.runs.items() if memory is not None]
        if kept:
            cursor.executemany(_RUN, sorted(kept))
        gone = [run_key(run) for run, memory in batch.runs.items() if memory is None]
        if gone:
            cursor.executemany(_DROP_RUN, sorted(gone))
        if batch.notes:
            notes = sorted((*map(as_text, key), as_text(value)) for key, value in batch.notes.items())
            cursor.executemany(_NOTE, notes)
        if batch.jobs:
            jobs = {job.key: tuple(map(as_text, job)) for job in batch.jobs}
            cursor.executemany(_JOB, [jobs[key] for key in sorted(jobs)])


def prune(connection: Connection, retention: Retention, wall: float) -> None:
    """Delete resolved incidents and finished jobs beyond the retention, unless another collector is doing so.

    Args:
        wall: Unix time in seconds.

    Raises:
        psycopg.Error: the server cannot delete rows now.
    """
    before = wall - retention.seconds
    with connection.transaction():
        if connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (PRUNE_LOCK,)).fetchone() != (True,):
            return
        connection.execute("DELETE FROM otel_fr.incidents WHERE state = 'resolved' AND changed < %s", (before,))
        connection.execute("DELETE FROM otel_fr.jobs WHERE ended < %s", (before,))
        row = connection.execute(
            f"SELECT coalesce(sum({_INCIDENT_SIZE}), 0)::bigint FROM otel_fr.incidents".encode()  # noqa: S608
        ).fetchone()
        used = 0 if row is None else int(row[0])
        connection.execute(_LARGEST_JOBS, {"room": max(0, retention.size - used)})
        connection.execute(_LARGEST_INCIDENTS, {"room": retention.size})
        connection.execute(
            "DELETE FROM otel_fr.notes WHERE NOT EXISTS (SELECT 1 FROM otel_fr.incidents WHERE id = notes.incident)"
        )
        connection.execute(_RUNS_WITHOUT_INCIDENT)


_INCIDENT_SIZE = "pg_column_size(data) + pg_column_size(memory) + 300"
_JOB_SIZE = "pg_column_size(summary) + pg_column_size(detail) + 100"
"""Approximate bytes of a row on disk: its large columns, as they are stored (compressed), and the others."""
_LARGEST_JOBS = f"""
    DELETE FROM otel_fr.jobs USING (
        SELECT id, sum({_JOB_SIZE}) OVER (ORDER BY ended DESC, id) AS total FROM otel_fr.jobs
    ) AS sized WHERE jobs.id = sized.id AND total > %(room)s
"""  # noqa: S608
_LARGEST_INCIDENTS = f"""
    DELETE FROM otel_fr.incidents AS known USING (
        SELECT id, job, attempt, run, state,
        sum({_INCIDENT_SIZE}) OVER (ORDER BY state, changed DESC, id, job, attempt, run) AS total
        FROM otel_fr.incidents
    ) AS sized WHERE (known.id, known.job, known.attempt, known.run) = (sized.id, sized.job, sized.attempt, sized.run)
    AND sized.state = 'resolved' AND total > %(room)s
"""  # noqa: S608
_RUNS_WITHOUT_INCIDENT = """
    DELETE FROM otel_fr.runs AS known WHERE NOT EXISTS (
        SELECT 1 FROM otel_fr.incidents AS one WHERE state = 'firing'
        AND (one.job, one.attempt, one.run) = (known.job, known.attempt, known.run)
    )
"""


def _order(row: IncidentRow) -> tuple[object, ...]:
    """Sort key of rows. All collectors use it, so that no two wait for each other's rows."""
    return row.id, row.job, row.attempt, row.run


def _apart(batch: Batch) -> Iterator[Batch]:
    """Divide a batch into one batch per row."""
    yield from (Batch(incidents={key: row}) for key, row in batch.incidents.items())
    yield from (Batch(runs={run: memory}) for run, memory in batch.runs.items())
    yield from (Batch(notes={key: value}) for key, value in batch.notes.items())
    yield from (Batch(jobs=[job]) for job in batch.jobs)
