"""Which ranks of a large job are asked where they wait."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace
from otel_fr_collector.incidents import witnesses
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.open_waits import find
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import Snapshot, snapshot

from otel_fr.match import CallState, Category, Finding, Group
from tests.support.evidence import SUM, finding
from tests.support.told import apply, new_run, told_group

WORLD = Group("w", "0", "default_pg", tuple(range(8)))
NOW = 20.0


def job(*, told: int = 1, behind: tuple[int, ...] = (7,), unlisted: float | None = 9.0) -> Run:
    """Eight ranks: those not ``behind`` wait in collective 5, and the first ``told`` ranks say where they are."""
    run = new_run(world_size=8)
    for rank in WORLD.ranks:
        enqueued, is_witness = 4 if rank in behind else 5, rank < told
        counts = told_group(WORLD, enqueued, 4)
        waits = RankCall(rank, 42, "w", "collective", 5, SUM, CallState.IN_FLIGHT, enqueued_at=NOW - 9.0)
        apply(
            run,
            rank,
            1,
            NOW,
            groups=(counts if is_witness else replace(counts, name="", ranks=""),),
            inflight=[waits] if is_witness and rank not in behind else [],
            idle_s=9.0,
            is_brief=not is_witness,
            unlisted_s=None if is_witness else unlisted,
        )
    return run


def seen(run: Run) -> Snapshot:
    taken = snapshot(run, NOW)
    taken.evidence()
    return taken


def test_a_rank_that_others_wait_for_and_that_waits_itself_is_asked_where() -> None:
    assert witnesses.to_ask(seen(job()), []) == {7}


def test_nobody_is_asked_in_a_job_in_which_each_rank_says_where_it_waits() -> None:
    assert witnesses.to_ask(seen(job(unlisted=None)), []) == set()


@pytest.mark.parametrize("category", [Category.STALLED_COLLECTIVE, Category.SIZE_MISMATCH])
def test_all_that_joined_are_asked_where_nobody_is_missing(category: Category) -> None:
    """What one of them called may not fit to what the witnesses called."""
    all_joined = finding(category, culprit_ranks=(), waiting_ranks=tuple(range(8)), age=9.0)
    taken = seen(job(behind=()))
    assert witnesses.to_ask(taken, [all_joined]) == set(range(1, 8))
    assert witnesses.to_ask(taken, [dataclasses.replace(all_joined, caused_by="w/collective/4")]) == set()


def test_a_verdict_that_names_nobody_waits_for_those_who_were_asked_but_not_for_ever() -> None:
    def stalled(age: float = 9.0, culprits: tuple[int, ...] = ()) -> Finding:
        everybody = tuple(range(8))
        return finding(Category.STALLED_COLLECTIVE, culprit_ranks=culprits, waiting_ranks=everybody, age=age)

    taken = seen(job(behind=()))
    assert witnesses.is_early(taken, stalled())
    assert not witnesses.is_early(taken, stalled(15.0))
    assert not witnesses.is_early(taken, stalled(culprits=(3,)))
    assert not witnesses.is_early(seen(job(told=8, behind=())), stalled()), "all have said where they wait"


def test_the_ranks_that_say_only_that_they_wait_count_in_an_open_wait() -> None:
    (wait,) = find(seen(job(behind=(6,))))
    assert set(wait.waited) == {0, 1, 2, 3, 4, 5, 7}
    assert find(seen(job(unlisted=None))) == [], "one of eight does not show that the group waits"


def test_ranks_are_asked_at_once_if_no_witness_is_among_them() -> None:
    assert job().to_ask == set(), "rank 0 has said in which call they wait"
    assert job(behind=(0,)).to_ask == {1, 2, 3, 4, 5, 6, 7}
    assert job(behind=(0,), unlisted=1.0).to_ask == set(), "not for a short wait"
