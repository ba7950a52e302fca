"""Which runs this collector judges, where several share a database: those whose ranks report to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.storage.sharing import Claim, Shared, SharedJob
from otel_fr_collector.storage.store import Store

SHARE_SECONDS = 1.0
"""Seconds between two exchanges with the database."""
CLAIM_PATIENCE = 2.0
"""Seconds that a run which nobody is known to own waits for an answer, before it is judged without one."""
RENEW_SECONDS = 3.0
"""Seconds after which a run is claimed again that this collector owns."""
LEASE_SECONDS = 10.0
"""Seconds without an answer after which other collectors may have taken this one's runs (`postgres_writing.LEASE`)."""
HEARD_SECONDS = 3.0
"""Seconds since the latest telemetry of a run, within which its ranks report to this collector."""
SUMMARY_SECONDS = 5.0
"""Seconds between two summaries of one run for the other collectors."""
SUMMARIES_AT_ONCE = 64
"""Of large runs each takes a millisecond."""
AWAY_SECONDS = 15.0
"""Seconds without an answer after which other collectors' runs are judged, too, if all their ranks report here."""


class Change(NamedTuple):
    """What an answer of the database changes.

    Attributes:
        taken: the runs that this collector owns by it, and did not before. lost: those that are others' now.
    """

    answer: Shared
    taken: list[RunId]
    lost: list[RunId]


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
        self._own: dict[RunId, float] = {}
        """When each was last claimed."""
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
        self._own.pop(run, None)
        self._foreign.add(run)

    def step(self, runs: Collection[Run], firing: Collection[RunId], now: float) -> Change | None:
        """Take the answer of the database, if there is one, and ask again, if it is time.

        Args:
            runs: all that are known. firing: those with open incidents. now: monotonic.

        Returns:
            What has changed; None: there is no answer now.
        """
        store = self._store
        if store is None:
            return None
        answer = store.take_shared() if self._is_asking else None
        found = None
        if answer is not None:
            self._is_asking = False
            if answer.shared is not None:
                found = self._take(answer.shared, answer.claims, firing, now)
                self._answered_at = now
        if not self._is_asking and now - self._asked_at >= SHARE_SECONDS:
            self._asked_at, self._is_asking = now, True
            store.share(self._claims({run.id: run for run in runs}, firing, now), self._page)
        return found

    def _take(self, shared: Shared, claims: Iterable[Claim], firing: Collection[RunId], now: float) -> Change:
        claimed = {claim.run: claim for claim in claims}
        lost = set(claimed) - shared.own
        concerned = [run for run in lost if run in self._own or run in firing]
        self._foreign = (self._foreign | lost) - shared.own
        for run in lost:
            self._own.pop(run, None)
        self._own.update(dict.fromkeys(shared.own, now))
        self.jobs = shared.jobs
        new = [run for run in shared.own if run not in claimed or not claimed[run].is_own]
        return Change(shared, new, concerned)

    def _claims(self, runs: Mapping[RunId, Run], firing: Collection[RunId], now: float) -> list[Claim]:
        known = {*runs, *firing}
        self._foreign &= known
        self._own = {run: at for run, at in self._own.items() if run in known}
        # After a time without the database, another collector may have had them.
        is_sure = now - self._answered_at < LEASE_SECONDS
        claims = []
        room = SUMMARIES_AT_ONCE
        for number in known:
            run = runs.get(number)
            is_heard = run is not None and now - run.last_seen < HEARD_SECONDS
            is_fresh = is_sure and now - self._own.get(number, float("-inf")) < RENEW_SECONDS
            if is_fresh or (number in self._foreign and not is_heard):
                continue
            text = ""
            is_old = now - self._described.get(number, float("-inf")) >= SUMMARY_SECONDS
            if run is not None and is_heard and is_old and room:
                room -= 1
                self._described[number] = now
                text = self.describe(run)
            claims.append(Claim(number, is_heard, is_sure and number in self._own, text))
        self._described = {run: at for run, at in self._described.items() if run in known}
        return claims


def _is_complete(run: Run) -> bool:
    reporting = sum(rank.report is not None for rank in run.ranks.values())
    return run.world_size is not None and reporting >= run.world_size
