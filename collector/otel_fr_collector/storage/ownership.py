"""Which runs this collector judges, where several share a database: those whose ranks report to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.storage.sharing import Claim, Shared, SharedJob
from otel_fr_collector.storage.store import Store

SHARE_SECONDS = 1.0
"""Seconds between two exchanges with the database."""
CLAIM_PATIENCE = 2.0
"""Seconds that a run which nobody is known to own waits for an answer, before it is judged without one."""
HEARD_SECONDS = 3.0
"""Seconds since the latest telemetry of a run, within which its ranks report to this collector."""
SUMMARY_SECONDS = 5.0
"""Seconds between two summaries of one run for the other collectors."""
SUMMARIES_AT_ONCE = 64
"""Of large runs each takes a millisecond."""
AWAY_SECONDS = 15.0
"""Seconds without an answer after which other collectors' runs are judged, too, if all their ranks report here."""


class Ownership:
    """The runs that this collector owns, and those that others do.

    Without a shared database it owns all.

    Args:
        page: the URL of this collector's page.

    Attributes:
        describe: makes the summary of a run (JSON) that the other collectors show.
        jobs: what the others show.
    """

    def __init__(self, store: Store | None, started: float, page: str = "") -> None:
        self._store = store if store is not None and store.is_shared else None
        self._page = page
        self._own: set[RunId] = set()
        self._foreign: set[RunId] = set()
        self._asked_at = self._answered_at = started
        self._is_asking = False
        self._described: dict[RunId, float] = {}
        self.describe: Callable[[Run], str] = lambda _: ""
        self.jobs: list[SharedJob] = []

    @property
    def is_shared(self) -> bool:
        return self._store is not None

    def may_judge(self, run: Run, now: float) -> bool:
        """Whether this collector judges the run. ``now``: monotonic."""
        if self._store is None or run.id in self._own:
            return True
        if run.id in self._foreign:
            return now - self._answered_at > AWAY_SECONDS and _is_complete(run)
        return now - run.first_seen > CLAIM_PATIENCE and now - self._answered_at > CLAIM_PATIENCE

    def is_foreign(self, run: RunId) -> bool:
        """Another collector owns it."""
        return run in self._foreign

    def lose(self, run: RunId) -> None:
        """Another collector owns the run, as the database has said."""
        self._own.discard(run)
        self._foreign.add(run)

    def step(self, runs: Collection[Run], firing: Iterable[RunId], now: float) -> tuple[Shared, list[RunId]] | None:
        """Take the answer of the database, if there is one, and ask again, if it is time.

        Args:
            runs: all that are known. firing: those with open incidents. now: monotonic.

        Returns:
            The answer, and the runs that this collector has lost to others by it; None: there is none now.
        """
        store = self._store
        if store is None:
            return None
        answer = store.take_shared() if self._is_asking else None
        found = None
        if answer is not None:
            self._is_asking = False
            if answer.shared is not None:
                self._answered_at = now
                found = answer.shared, self._take(answer.shared, answer.claims)
        if not self._is_asking and now - self._asked_at >= SHARE_SECONDS:
            self._asked_at, self._is_asking = now, True
            store.share(self._claims(runs, firing, now), self._page)
        return found

    def _take(self, shared: Shared, claims: Iterable[Claim]) -> list[RunId]:
        lost = [claim.run for claim in claims if claim.run not in shared.own]
        self._foreign.update(lost)
        self._foreign -= shared.own
        gone = [run for run in lost if run in self._own]
        self._own = shared.own
        self.jobs = shared.jobs
        return gone

    def _claims(self, runs: Collection[Run], firing: Iterable[RunId], now: float) -> list[Claim]:
        claims: dict[RunId, Claim] = {}
        self._foreign &= {run.id for run in runs}
        room = SUMMARIES_AT_ONCE
        for run in runs:
            is_heard = now - run.last_seen < HEARD_SECONDS
            if run.id in self._foreign and not is_heard:
                continue
            text = ""
            if is_heard and room and now - self._described.get(run.id, float("-inf")) >= SUMMARY_SECONDS:
                room -= 1
                self._described[run.id] = now
                text = self.describe(run)
            claims[run.id] = Claim(run.id, is_heard, run.id in self._own, text)
        for known in firing:
            claims.setdefault(known, Claim(known, is_heard=False, is_own=known in self._own, summary=""))
        self._described = {run: at for run, at in self._described.items() if run in claims}
        return list(claims.values())


def _is_complete(run: Run) -> bool:
    reporting = sum(rank.report is not None for rank in run.ranks.values())
    return run.world_size is not None and reporting >= run.world_size
