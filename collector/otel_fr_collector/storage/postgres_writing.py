"""The statements that write to PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator

import psycopg
from psycopg import errors

from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.storage.batch import Batch, IncidentRow
from otel_fr_collector.storage.postgres_connection import Connection
from otel_fr_collector.storage.postgres_migrations import PRUNE_LOCK
from otel_fr_collector.storage.postgres_reading import as_text
from otel_fr_collector.storage.retention import Retention

_log = logging.getLogger(__name__)

LEASE = "10 seconds"
"""How long a run stays a collector's after it was last heard of: then another one may take it."""
_NEVER_FITS = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded, UnicodeError)
"""What writing a row raises that the server will never take, such as a name that is too long for an index."""

_CLAIM = f"""
    INSERT INTO otel_fr.owners AS known (job, attempt, run, collector, seen, expires)
    SELECT job, attempt, run, %(collector)s, now(), now() + interval '{LEASE}'
    FROM unnest(%(jobs)s::text[], %(attempts)s::bigint[], %(runs)s::text[]) AS wanted (job, attempt, run)
    ORDER BY job, attempt, run
    ON CONFLICT (job, attempt, run) DO UPDATE SET collector = excluded.collector, expires = excluded.expires
    WHERE known.collector = excluded.collector OR known.expires < now()
    RETURNING job, attempt, run
"""  # noqa: S608  a constant
_INCIDENT = """
    INSERT INTO otel_fr.incidents AS known VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (id, job, attempt, run) DO UPDATE SET state = excluded.state, category = excluded.category,
    cause = excluded.cause, detected = excluded.detected, changed = excluded.changed, data = excluded.data,
    memory = excluded.memory, written = now()
"""
_NEWER_ONLY = " WHERE known.changed <= excluded.changed"
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
"""
_RESTORED_JOB = """
    INSERT INTO otel_fr.jobs VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE
    SET ended = excluded.ended, summary = excluded.summary, detail = excluded.detail WHERE jobs.ended < excluded.ended
"""


def write(connection: Connection, batch: Batch, collector: str, *, late: bool = False) -> Collection[RunId]:
    """Write a batch in one transaction. A row that the server will never take is logged, and left out.

    Args:
        collector: whose runs they become, if no other collector owns them.
        late: the rows have waited for the server: those that the database has newer are left out.

    Returns:
        The runs that another collector owns, of which nothing was written.

    Raises:
        psycopg.Error: the server does not take them now; nothing was written.
    """
    try:
        with connection.transaction():
            return _write(connection, batch, collector, late=late)
    except _NEVER_FITS:
        pass  # which row it is shows below
    refused: set[RunId] = set()
    for one in _apart(batch):
        try:
            with connection.transaction():
                refused.update(_write(connection, one, collector, late=late))
        except _NEVER_FITS as error:
            _log.error("the database of --store does not take a row, which is left out: %s", error)
    return refused


def _write(connection: Connection, batch: Batch, collector: str, *, late: bool) -> Collection[RunId]:
    wanted = {key[0] for key in batch.incidents} | set(batch.runs)
    refused = wanted - claim(connection, wanted, collector) if wanted else wanted
    with connection.cursor() as cursor:
        rows = [_encoded(row) for key, row in sorted(batch.incidents.items(), key=_order) if key[0] not in refused]
        if rows:
            cursor.executemany((_INCIDENT + _NEWER_ONLY if late else _INCIDENT).encode(), rows)
        own = [(run, memory) for run, memory in batch.runs.items() if run not in refused]
        kept = [(*_columns(run), memory) for run, memory in own if memory is not None]
        if kept:
            cursor.executemany(_RUN, sorted(kept))
        gone = [_columns(run) for run, memory in own if memory is None]
        if gone:
            cursor.executemany(_DROP_RUN, sorted(gone))
        if batch.notes:
            notes = sorted((*map(as_text, key), as_text(value)) for key, value in batch.notes.items())
            cursor.executemany(_NOTE, notes)
        if batch.jobs:
            jobs = {job.key: tuple(map(as_text, job)) for job in batch.jobs}
            cursor.executemany((_RESTORED_JOB if late else _JOB).encode(), [jobs[key] for key in sorted(jobs)])
    return refused


def claim(connection: Connection, runs: Iterable[RunId], collector: str) -> set[RunId]:
    """Make runs this collector's own, or keep them so; returns those that are. The others are another's."""
    known = {_columns(run): run for run in runs}
    jobs, attempts, names = ([key[column] for key in known] for column in range(3))
    given = {"collector": collector, "jobs": jobs, "attempts": attempts, "runs": names}
    return {known[row] for row in connection.execute(_CLAIM, given).fetchall()}


def prune(connection: Connection, retention: Retention, wall: float) -> int:
    """Delete resolved incidents and finished jobs beyond the retention, unless another collector does.

    Args:
        wall: Unix time in seconds.

    Returns:
        How many incidents and jobs.

    Raises:
        psycopg.Error: the server does not do it now.
    """
    before = wall - retention.seconds
    with connection.transaction():
        if connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (PRUNE_LOCK,)).fetchone() != (True,):
            return 0
        gone = connection.execute(
            "DELETE FROM otel_fr.incidents WHERE state = 'resolved' AND changed < %s", (before,)
        ).rowcount
        gone += connection.execute("DELETE FROM otel_fr.jobs WHERE ended < %s", (before,)).rowcount
        row = connection.execute(
            f"SELECT coalesce(sum({_INCIDENT_SIZE}), 0)::bigint FROM otel_fr.incidents".encode()  # noqa: S608
        ).fetchone()
        used = 0 if row is None else int(row[0])
        gone += connection.execute(_LARGEST_JOBS, {"room": max(0, retention.size - used)}).rowcount
        gone += connection.execute(_LARGEST_INCIDENTS, {"room": retention.size}).rowcount
        connection.execute(
            "DELETE FROM otel_fr.notes WHERE NOT EXISTS (SELECT 1 FROM otel_fr.incidents WHERE id = notes.incident)"
        )
        for table, old in (("runs", ""), ("owners", "expires < now() - interval '1 day' AND ")):
            connection.execute(_WITHOUT_INCIDENT.format(table=table, old=old).encode())
    return gone


_INCIDENT_SIZE = "pg_column_size(data) + pg_column_size(memory) + 300"
_JOB_SIZE = "pg_column_size(summary) + pg_column_size(detail) + 100"
"""Bytes of a row on the disk, about: of its large columns as they are stored, compressed, and of the others."""
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
_WITHOUT_INCIDENT = """
    DELETE FROM otel_fr.{table} AS known WHERE {old}NOT EXISTS (
        SELECT 1 FROM otel_fr.incidents AS one WHERE state = 'firing'
        AND (one.job, one.attempt, one.run) = (known.job, known.attempt, known.run)
    )
"""


def _columns(run: RunId) -> tuple[str, int, str]:
    return as_text(run.job), run.attempt, as_text(run.run)


def _encoded(row: IncidentRow) -> tuple[object, ...]:
    return tuple(map(as_text, row))


def _order(item: tuple[tuple[RunId, str], IncidentRow]) -> tuple[object, ...]:
    """The same in all collectors, so that no two wait for each other's rows."""
    row = item[1]
    return row.id, row.job, row.attempt, row.run


def _apart(batch: Batch) -> Iterator[Batch]:
    """A batch for each row."""
    yield from (Batch(incidents={key: row}) for key, row in batch.incidents.items())
    yield from (Batch(runs={run: memory}) for run, memory in batch.runs.items())
    yield from (Batch(notes={key: value}) for key, value in batch.notes.items())
    yield from (Batch(jobs=[job]) for job in batch.jobs)
