"""Which runs a collector judges, by what the database answers; the database is played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from otel_fr_collector.jobs.rank_reports import KeptReport
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.storage import ownership
from otel_fr_collector.storage.ownership import Change, Ownership
from otel_fr_collector.storage.sharing import Claim, Shared
from otel_fr_collector.storage.store import Answer, Store


class Database:
    """Answers claims at once, but for runs of ``others``; not at all while it is ``away``."""

    is_shared = True

    def __init__(self) -> None:
        self.others: set[RunId] = set()
        self.away = False
        self.claims: Sequence[Claim] = ()
        self._answer: Answer | None = None

    def share(self, claims: Sequence[Claim], page: str) -> None:
        self.claims = claims
        own = {claim.run for claim in claims} - self.others
        self._answer = Answer(claims, None if self.away else Shared(own=own))

    def take_shared(self) -> Answer | None:
        answer, self._answer = self._answer, None
        return answer


class Played:
    """One run, of two ranks, of a collector that shares a database."""

    def __init__(self) -> None:
        self.database = Database()
        self.ownership = Ownership(cast("Store", self.database), 0.0)
        self.run = Run(RunId("job", 0, "run"), 0.0, 0.0, world_size=2)
        self.now = 0.0
        self.firing: list[RunId] = []

    def until(self, end: float, *, heard: bool = True) -> list[Change]:
        """Step each second up to that time; returns what has changed."""
        changes = []
        while self.now < end:
            self.now += 1.0
            if heard:
                self.run.last_seen = self.now
            found = self.ownership.step([self.run], self.firing, self.now)
            if found is not None and (found.taken or found.lost):
                changes.append(found)
        return changes

    @property
    def judges(self) -> bool:
        return self.ownership.may_judge(self.run, self.now)


def test_without_a_shared_database_every_run_is_judged() -> None:
    alone = Ownership(None, 0.0)
    assert alone.may_judge(Run(RunId("job", 0, "run"), 0.0, 0.0), 0.0)
    assert alone.step([], [], 10.0) is None


def test_a_run_is_judged_once_the_database_says_that_it_is_this_collectors() -> None:
    one = Played()
    assert not one.judges
    (change,) = one.until(2.0)
    assert (change.taken, change.lost) == ([one.run.id], [])
    assert one.judges
    assert one.until(100.0) == []


def test_a_run_of_another_collector_is_not_judged_until_that_gives_it_up() -> None:
    one = Played()
    one.database.others = {one.run.id}
    assert one.until(60.0) == []
    assert not one.judges
    assert one.ownership.is_foreign(one.run.id)
    one.database.others = set()
    (change,) = one.until(62.0)
    assert change.taken == [one.run.id]
    assert one.judges


def test_a_run_that_another_collector_has_taken_is_handed_over() -> None:
    one = Played()
    one.until(10.0)
    one.database.others = {one.run.id}
    (change,) = one.until(20.0, heard=False)
    assert change.lost == [one.run.id]
    assert not one.judges
    assert one.until(60.0, heard=False) == []
    assert one.database.claims == [], "it is not asked for, since its ranks report elsewhere"


def test_an_incident_of_a_run_that_is_anothers_is_handed_over_even_if_the_run_was_never_owned() -> None:
    """It was found while the database was away."""
    one = Played()
    one.database.away = True
    one.until(4.0)
    assert one.judges
    one.firing = [one.run.id]
    one.database.away, one.database.others = False, {one.run.id}
    (change,) = one.until(6.0)
    assert change.lost == [one.run.id]


def test_while_the_database_is_away_runs_of_others_are_judged_if_all_of_their_ranks_report_here() -> None:
    one = Played()
    one.database.others = {one.run.id}
    one.until(10.0)
    one.database.away = True
    one.run.ranks[0] = RankState(0, report=cast("KeptReport", object()))
    one.until(10.0 + ownership.AWAY_SECONDS + 5.0)
    assert not one.judges, "one of two ranks reports here"
    one.run.ranks[1] = RankState(1, report=cast("KeptReport", object()))
    assert one.judges


def test_after_a_time_without_the_database_runs_are_taken_anew_with_what_others_have_made_of_them() -> None:
    one = Played()
    one.until(10.0)
    one.database.away = True
    one.until(40.0)
    assert one.judges
    one.database.away = False
    (change,) = one.until(43.0)
    assert change.taken == [one.run.id]


def test_a_run_is_claimed_again_before_its_lease_ends_and_not_each_second() -> None:
    one = Played()
    one.until(10.0)
    counts = []
    for second in range(12):
        one.until(11.0 + second)
        counts.append(len(one.database.claims))
    assert 2 <= sum(counts) <= 5
