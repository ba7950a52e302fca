"""The statements by which collectors continue each other's incidents. All times are times of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from psycopg import errors

from otel_fr_collector.incidents.incident import MARK_FORM
from otel_fr_collector.storage.backend import Heard, Saved, Shared, StoreError, Turn
from otel_fr_collector.storage.postgres_connection import Connection, answering
from otel_fr_collector.storage.postgres_reading import PostgresReading, as_text, run_key
from otel_fr_collector.storage.stored_rows import published_row

KEPT_FOR = "5 seconds"
"""Interval at which a collector marks the open incidents that it continues."""
ORPHANED_AFTER = "20 seconds"
"""Time since the last mark after which any other collector takes over an open incident."""
MAX_ORPHANS = 64
"""Incidents that are taken over at once."""
MAX_CHANGED = 256
"""Changes by other collectors that are noticed at once. Only the event stream needs them; lists show all incidents."""
OVERLAP = "3 seconds"
"""Overlap of two queries for changes: a transaction may become visible later than one that began after it."""

_GIVEN = "unnest(%(jobs)s::text[], %(attempts)s::bigint[], %(runs)s::text[]"
_KEEP = f"""
    UPDATE otel_fr.incidents SET collector = %(collector)s, kept = now() WHERE (id, job, attempt, run) IN (
        SELECT id, job, attempt, run FROM otel_fr.incidents
        JOIN {_GIVEN}, %(heard)s::boolean[]) AS its (job, attempt, run, heard) USING (job, attempt, run)
        WHERE state = 'firing'
        AND CASE WHEN collector = %(collector)s THEN kept < now() - interval '{KEPT_FOR}' ELSE heard END
        FOR UPDATE OF incidents SKIP LOCKED)
"""  # noqa: S608  constants
_LOST = f"""
    SELECT job, attempt, run FROM otel_fr.incidents JOIN {_GIVEN}) AS its (job, attempt, run) USING (job, attempt, run)
    GROUP BY job, attempt, run HAVING bool_or(collector <> %(collector)s)
    AND NOT bool_or(collector = %(collector)s AND state = 'firing')
"""  # noqa: S608  constants
_ORPHANS = f"""
    UPDATE otel_fr.incidents SET collector = %(collector)s, kept = now() WHERE (id, job, attempt, run) IN (
        SELECT id, job, attempt, run FROM otel_fr.incidents
        WHERE state = 'firing' AND kept < now() - interval '{ORPHANED_AFTER}'
        LIMIT {MAX_ORPHANS} FOR UPDATE SKIP LOCKED)
    RETURNING job, attempt, run
"""  # noqa: S608  constants
_INCIDENTS = f"""
    SELECT memory, data FROM otel_fr.incidents JOIN {_GIVEN}) AS its (job, attempt, run) USING (job, attempt, run)
    ORDER BY state, detected DESC LIMIT %(limit)s
"""  # noqa: S608  constants
_RUNS = f"""
    SELECT memory FROM otel_fr.runs JOIN {_GIVEN}) AS its (job, attempt, run) USING (job, attempt, run)
"""  # noqa: S608  constants
_NOTES = "SELECT outlet, incident, value FROM otel_fr.notes WHERE incident = ANY(%s)"
_TURN = f"""
    INSERT INTO otel_fr.notes AS known VALUES (%s, %s, %s) ON CONFLICT (outlet, incident)
    DO UPDATE SET value = excluded.value
    WHERE known.value COLLATE "C" < excluded.value OR known.value !~ '^{MARK_FORM}$' RETURNING 1
"""  # noqa: S608  a constant
"""Waits while another transaction locks the row: until that collector has notified the receiver, or has died."""
_CHANGED = f"""
    SELECT data, state, memory FROM otel_fr.incidents
    WHERE written > %(since)s - interval '{OVERLAP}' AND collector <> %(collector)s ORDER BY written LIMIT {MAX_CHANGED}
"""  # noqa: S608  constants


class PostgresSharing(PostgresReading):
    """What collectors exchange each second, and their turns to notify receivers."""

    is_shared = True
    _since: object = None
    """The server's time of the last query for changes. None: there was none yet."""
    _noticed: frozenset[tuple[str, int]] = frozenset()
    """Ids and revisions of the changes that the last query has found."""

    @contextlib.contextmanager
    def turn(self, outlet: str, number: str, mark: str) -> Iterator[Turn]:
        self._check_reachable()
        with self._pool.connection() as db:
            try:
                with answering(db):
                    db.execute("BEGIN")
                    turn = Turn(db.execute(_TURN, (outlet, as_text(number), mark)).fetchone() is None)
            except errors.LockNotAvailable as error:
                raise StoreError("another collector is notifying the receiver") from error
            yield turn
            with answering(db):
                db.execute("COMMIT" if turn.is_told else "ROLLBACK")

    def _share(self, connection: Connection, heard: Heard, collector: str, limit: int) -> Shared:
        """Mark own incidents, take over those whose collector has died, and read what others have changed.

        Args:
            limit: how many incidents to load at most.

        Raises:
            psycopg.Error: the server does not answer.
        """
        shared = Shared()
        own = {"collector": collector}
        firing = {run_key(run): is_heard for run, is_heard in sorted(heard.firing.items())}
        if firing:
            connection.execute(_KEEP, {**_arrays(list(firing)), **own, "heard": list(firing.values())})
            silent = {run_key(run): run for run, is_heard in heard.firing.items() if not is_heard}
            if silent:
                lost = connection.execute(_LOST, {**_arrays(list(silent)), **own}).fetchall()
                shared.lost = {silent[key] for key in lost}
        orphans = connection.execute(_ORPHANS, own).fetchall()
        wanted = list(dict.fromkeys([*map(run_key, heard.new), *orphans]))
        if wanted:
            given = _arrays(wanted)
            incidents = connection.execute(_INCIDENTS, {**given, "limit": limit}).fetchall()
            shared.taken = self._with_notes(connection, incidents, connection.execute(_RUNS, given).fetchall())
        self._look(connection, collector, shared)
        return shared

    def _with_notes(
        self, connection: Connection, incidents: Iterable[tuple[str, str]], runs: Iterable[tuple[str]]
    ) -> Saved:
        """Read rows like `StoredRows._saved`, with the notes on the incidents."""
        saved = self._saved(incidents, runs, ())
        notes = connection.execute(_NOTES, ([incident.id for incident in saved.incidents],)).fetchall()
        saved.notes = {(outlet, number): value for outlet, number, value in notes}
        return saved

    def _look(self, connection: Connection, collector: str, shared: Shared) -> None:
        """Add what other collectors have changed since the last call. The first call adds nothing."""
        row = connection.execute("SELECT now()").fetchone()
        now = None if row is None else row[0]
        if self._since is not None:
            found: dict[tuple[str, int], None] = {}
            for columns in connection.execute(_CHANGED, {"since": self._since, "collector": collector}):
                with self._skip_unreadable("incident"):
                    incident = published_row(*columns)
                    key = (incident["id"], incident["revision"])
                    found[key] = None
                    if key not in self._noticed:
                        shared.changed.append(incident)
            self._noticed = frozenset(found)
        self._since = now


def _arrays(keys: Sequence[tuple[str, int, str]]) -> dict[str, object]:
    jobs, attempts, runs = ([key[column] for key in keys] for column in range(3))
    return {"jobs": jobs, "attempts": attempts, "runs": runs}
