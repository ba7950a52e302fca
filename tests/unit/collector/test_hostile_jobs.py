"""Jobs that claim much, or what is another's: batches of thousands, huge worlds, and another job's run id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import chain

import pytest
from otel_fr_collector.incidents.incident import ChangeKind
from otel_fr_collector.incidents.judge import MAX_SIZE_ON_LOOP
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.groups import MAX_EXTRA, GroupState
from otel_fr_collector.jobs.run import MAX_RANKS_PER_RUN
from otel_fr_collector.jobs.snapshot import snapshot

from otel_fr.match import CallState, Group, Signature
from tests.support.evidence import LARGE, SUM
from tests.support.services import Clock, new_service
from tests.support.told import apply, group_in, new_run, run_in, told_group, wait_alone
from tests.support.waiting import PATIENCE


def reported(rank: int, record: int, state: CallState = CallState.IN_FLIGHT, signature: Signature = SUM) -> RankCall:
    return RankCall(rank, record, "g", "collective", 7, signature, state)


COUNT = MAX_EXTRA + 1
BATCHES: dict[str, Callable[[int], RankCall]] = {
    "of one rank": lambda number: reported(0, number),
    "in turn": lambda number: reported(number % 2, number // 2),
    "backwards": lambda number: reported(number % 2, COUNT - number // 2),
    "ended": lambda number: reported(number % 2, number // 2, CallState.COMPLETED),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("members", [(), (0,), (0, 1)])
def test_a_batch_of_thousands_of_calls_takes_linear_time(
    make: Callable[[int], RankCall], members: tuple[int, ...]
) -> None:
    """It took 10 s: each call compared all others again."""
    group = GroupState(Group("g", "0", "", members), len(members))
    began = time.process_time()
    for one in map(make, range(COUNT)):
        group.add(one)
    assert time.process_time() - began < 8


@pytest.mark.parametrize("count", [2, 20, 200, 2_000])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_that_differs_in_one_call_disagrees_once_it_has_ended(count: int, in_order: bool) -> None:
    group = GroupState(Group("g", "0", "", (0, 1)), 2)
    done = CallState.COMPLETED
    ranks = [[reported(rank, record) for record in range(count)] for rank in (0, 1)]
    ranks[1][-1] = reported(1, count - 1, signature=LARGE)
    for one in chain(*ranks) if in_order else chain(*zip(*ranks, strict=True)):
        group.add(one)
    for one in chain(*ranks):
        group.add(one._replace(state=done))
    assert group.disagreeing == 1


def test_a_batch_that_differs_is_judged_if_only_the_end_of_its_calls_shows_it() -> None:
    run, group = new_run(), Group("g", "0", "", (0, 1))
    group_in(run, group)
    ranks = [[reported(rank, record)._replace(enqueued_at=0.0) for record in range(40)] for rank in (0, 1)]
    ranks[1][-1] = ranks[1][-1]._replace(signature=LARGE)
    for count in range(1, 41):
        for rank, calls in enumerate(ranks):
            apply(run, rank, count, 1.0, inflight=calls[:count], groups=(told_group(group, 7, 6),))
    assert run.mismatch_since is None
    for rank in (0, 1):
        apply(run, rank, 41, 2.0, groups=(told_group(group, 7, 7),))
    assert run.mismatch_since == 2.0


@pytest.mark.parametrize("in_order", [True, False])
def test_an_equal_batch_completes(in_order: bool) -> None:
    group = GroupState(Group("g", "0", "", (0, 1)), 2)
    ranks = [[reported(rank, record) for record in range(500)] for rank in (0, 1)]
    for one in chain(*ranks) if in_order else chain(*zip(*ranks, strict=True)):
        assert not group.add(one)
    for one in chain(*ranks):
        group.add(one._replace(state=CallState.COMPLETED))
    assert (group.incomplete, group.weight - 2, group.call_count) == ({}, 0, 0)


@pytest.mark.parametrize("world", [MAX_SIZE_ON_LOOP, 16_384, 65_536, 1_000_001])
def test_a_rank_that_claims_a_huge_world_is_not_judged_on_the_event_loop(world: int) -> None:
    run = new_run()
    wait_alone(run, world)
    taken = snapshot(run, 2.1)
    assert taken.size > MAX_SIZE_ON_LOOP or len(taken.evidence().ranks) == 1
    assert len(snapshot(run, 2.1).evidence().ranks) <= MAX_RANKS_PER_RUN


def test_two_jobs_with_one_run_id_share_no_incident_and_no_command() -> None:
    """Run ids come from clients: one that sends another job's must neither see nor change anything of it."""
    service = new_service(Clock(2.1))
    for job in ("team-a/train", "team-b/train"):
        wait_alone(run_in(service.runs, job=job))
    asyncio.run(service.judge.finish(PATIENCE))
    found = service.book.known()
    assert [one.run.job for one in found] == ["team-a/train", "team-b/train"]
    assert len({one.id for one in found}) == 2
    for one in found:
        data = service.book.get(one.id)
        assert data is not None
        assert data["job"] == one.run.job
    changes = service.book.resolve_run(found[0].run, 3.0)
    assert [(change.kind, change.incident.run.job) for change in changes] == [(ChangeKind.RESOLVED, "team-a/train")]
    assert [one.run.job for one in service.book.known() if one.is_open] == ["team-b/train"]
