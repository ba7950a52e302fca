"""The statements by which collectors share runs. All times are the server's: the collectors' clocks may differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from otel_fr.encodable import load_json
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.storage.backend import Saved
from otel_fr_collector.storage.postgres_connection import Connection
from otel_fr_collector.storage.postgres_reading import PostgresReading, as_text
from otel_fr_collector.storage.postgres_writing import LEASE
from otel_fr_collector.storage.sharing import Claim, Shared, SharedJob
from otel_fr_collector.storage.stored_rows import published_row

UNHEARD_AFTER = "7 seconds"
"""How long the owner of a run must not have heard of it, before a collector that hears of it takes it: more than twice
`ownership.RENEW_SECONDS`."""
ORPHANED_AFTER = "5 seconds"
"""How long after the end of its lease a run with open incidents is taken by a collector that does not hear of it."""
MAX_ORPHANS = 64
"""Such runs that are taken at once."""
MAX_JOBS = 2_048
"""Runs of other collectors that are listed."""
MAX_CHANGED = 256
"""Incidents of others whose change is noticed at once; the event stream is a convenience, lists have all of them."""
OVERLAP = "3 seconds"
"""Of two looks at what others have changed: a transaction may be visible later than one that began after it."""

_CLAIM = f"""
    INSERT INTO otel_fr.owners AS known (job, attempt, run, collector, seen, expires, page, summary)
    SELECT job, attempt, run, %(collector)s, CASE WHEN heard THEN now() ELSE '-infinity' END,
        now() + interval '{LEASE}', %(page)s, summary
    FROM unnest(%(jobs)s::text[], %(attempts)s::bigint[], %(runs)s::text[], %(heard)s::boolean[], %(summaries)s::text[])
        AS wanted (job, attempt, run, heard, summary)
    ORDER BY job, attempt, run
    ON CONFLICT (job, attempt, run) DO UPDATE SET collector = excluded.collector, expires = excluded.expires,
        seen = greatest(known.seen, excluded.seen), page = excluded.page,
        summary = coalesce(nullif(excluded.summary, ''), known.summary)
    WHERE known.collector = excluded.collector OR known.expires < now()
        OR (excluded.seen = now() AND known.seen < now() - interval '{UNHEARD_AFTER}')
    RETURNING job, attempt, run
"""  # noqa: S608  constants
_ORPHANS = f"""
    UPDATE otel_fr.owners SET collector = %(collector)s, expires = now() + interval '{LEASE}', page = %(page)s
    WHERE (job, attempt, run) IN (
        SELECT job, attempt, run FROM otel_fr.owners AS one
        WHERE expires < now() - interval '{ORPHANED_AFTER}' AND EXISTS (
            SELECT 1 FROM otel_fr.incidents AS its WHERE state = 'firing'
            AND (its.job, its.attempt, its.run) = (one.job, one.attempt, one.run))
        ORDER BY job, attempt, run LIMIT {MAX_ORPHANS} FOR UPDATE SKIP LOCKED)
    RETURNING job, attempt, run
"""  # noqa: S608
_OF_RUNS = """
    FROM otel_fr.{table} AS one JOIN unnest(%(jobs)s::text[], %(attempts)s::bigint[], %(runs)s::text[])
    AS its (job, attempt, run) USING (job, attempt, run)
"""
_INCIDENTS = f"SELECT memory, data {_OF_RUNS.format(table='incidents')} ORDER BY state, detected DESC LIMIT %(limit)s"
_RUNS = "SELECT memory" + _OF_RUNS.format(table="runs")
_NOTES = "SELECT outlet, incident, value FROM otel_fr.notes WHERE incident = ANY(%s)"
_JOBS = f"""
    SELECT job, summary, page FROM otel_fr.owners
    WHERE collector <> %s AND expires > now() AND summary <> '' ORDER BY seen DESC LIMIT {MAX_JOBS}
"""  # noqa: S608
_CHANGED = f"""
    SELECT job, attempt, run, data, state, memory FROM otel_fr.incidents AS one
    WHERE written > %(since)s - interval '{OVERLAP}' AND EXISTS (
        SELECT 1 FROM otel_fr.owners AS its WHERE collector <> %(collector)s
        AND (its.job, its.attempt, its.run) = (one.job, one.attempt, one.run))
    ORDER BY written LIMIT {MAX_CHANGED}
"""  # noqa: S608


class PostgresSharing(PostgresReading):
    """What a collector asks and tells the others each second."""

    _since: object = None
    """The server's time of the last look at what others have changed; None: none yet."""
    _noticed: frozenset[tuple[str, int]] = frozenset()
    """Ids and revisions of the changes that the last look has found."""

    def _share(self, connection: Connection, claims: Sequence[Claim], collector: str, page: str, limit: int) -> Shared:
        """Claim runs and those whose collector has died; look at what the others have.

        Args:
            limit: incidents that are taken over at most.

        Raises:
            psycopg.Error: the server does not answer.
        """
        wanted = {_key(claim.run): claim for claim in claims}
        shared = Shared()
        with connection.transaction():
            given = {
                **_arrays(list(wanted)),
                "heard": [claim.is_heard for claim in wanted.values()],
                "summaries": [as_text(claim.summary) for claim in wanted.values()],
                "collector": collector,
                "page": page,
            }
            own = connection.execute(_CLAIM, given).fetchall() if wanted else []
            shared.own = {wanted[key].run for key in own}
            orphans = connection.execute(_ORPHANS, {"collector": collector, "page": page}).fetchall()
        new = [key for key in own if not wanted[key].is_own]
        new += [key for key in orphans if key not in wanted or not wanted[key].is_own]
        shared.own.update(wanted[key].run if key in wanted else RunId(*key) for key in orphans)
        if new:
            shared.taken = self._load_runs(connection, new, limit)
        rows = connection.execute(_JOBS, (collector,)).fetchall()
        for job, summary, shown_at in rows:
            with self._skip_unreadable("job"):
                shared.jobs.append(SharedJob(job, _object(summary), shown_at))
        self._look(connection, collector, shared)
        return shared

    def _load_runs(self, connection: Connection, keys: Sequence[tuple[str, int, str]], limit: int) -> Saved:
        given = {**_arrays(keys), "limit": limit}
        incidents = connection.execute(_INCIDENTS.encode(), given).fetchall()
        runs = connection.execute(_RUNS.encode(), given).fetchall()
        return self._with_notes(connection, incidents, runs)

    def _with_notes(
        self, connection: Connection, incidents: Iterable[tuple[str, str]], runs: Iterable[tuple[str]]
    ) -> Saved:
        """What these rows hold, as `StoredRows._saved` takes them, with the notes of the incidents."""
        saved = self._saved(incidents, runs, ())
        notes = connection.execute(_NOTES, ([incident.id for incident in saved.incidents],)).fetchall()
        saved.notes = {(outlet, number): value for outlet, number, value in notes}
        return saved

    def _look(self, connection: Connection, collector: str, shared: Shared) -> None:
        """Add what other collectors have changed since the last look; the first look only begins."""
        row = connection.execute("SELECT now()").fetchone()
        now = None if row is None else row[0]
        if self._since is not None:
            found: dict[tuple[str, int], None] = {}
            for *_, data, state, memory in connection.execute(_CHANGED, {"since": self._since, "collector": collector}):
                with self._skip_unreadable("incident"):
                    incident = published_row(data, state, memory)
                    key = (incident["id"], incident["revision"])
                    found[key] = None
                    if key not in self._noticed:
                        shared.changed.append(incident)
            self._noticed = frozenset(found)
        self._since = now


def _object(text: str) -> dict[str, object]:
    found = load_json(text)
    if not isinstance(found, dict):
        raise TypeError("the summary is no JSON object")
    return found


def _key(run: RunId) -> tuple[str, int, str]:
    return as_text(run.job), run.attempt, as_text(run.run)


def _arrays(keys: Sequence[tuple[str, int, str]]) -> dict[str, object]:
    jobs, attempts, runs = ([key[column] for key in keys] for column in range(3))
    return {"jobs": jobs, "attempts": attempts, "runs": runs}
