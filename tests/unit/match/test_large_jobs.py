"""Faults of jobs with thousands of ranks: a verdict takes about as much time as there are ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Ending, Group, NewGroup, Rank, Signature
from tests.support.evidence import call, judge, rank, world

_Job = tuple[list[Call], list[Rank]]


def network_failed(group: Group) -> _Job:
    """All ranks wait in three collectives, because their hosts ran ahead of their devices."""
    calls = [call(r, number, group=group) for r in group.ranks for number in (5, 6, 7)]
    return calls, [rank(r, 7, 4) for r in group.ranks]


def program_gave_up(group: Group) -> _Job:
    """Rank 0 is missing. All others have ended by a timeout of the program."""
    gave_up: dict[str, Any] = {"ending": Ending.RAISED, "exception": "TimeoutError: the step took too long"}
    others = group.ranks[1:]
    return [call(r, 5, group=group) for r in others], [rank(0, 4), *(rank(r, 5, 4, **gave_up) for r in others)]


def groups_differ(group: Group) -> _Job:
    """Half of the ranks create a group of all ranks, the others one of all but the last."""
    made = [NewGroup("1", "dp", group.ranks), NewGroup("1", "dp", group.ranks[:-1])]
    calls = [
        call(r, 1, group=group, stream="group", signature=Signature("new_group", new_group=made[r % 2]))
        for r in group.ranks
    ]
    return calls, [rank(r, 0) for r in group.ranks]


def half_completed(group: Group) -> _Job:
    """Half of the ranks have completed a collective. The others' devices may still be in it; nobody waits for them."""
    half = len(group.ranks) // 2
    calls = [call(r, 5, CallState.COMPLETED if r < half else CallState.IN_FLIGHT, group=group) for r in group.ranks]
    return calls, [rank(r, 5, 5 if r < half else 4) for r in group.ranks]


@pytest.mark.parametrize(
    ("fault", "size", "rules"),
    [
        (network_failed, 3_000, ["all_joined"]),
        (program_gave_up, 3_000, ["absent_rank"]),
        (groups_differ, 3_000, ["calls_differ"]),
        (half_completed, 10_000, []),
    ],
)
def test_a_verdict_takes_no_longer_than_a_moment(fault: Callable[[Group], _Job], size: int, rules: list[str]) -> None:
    group = world(size)
    calls, ranks = fault(group)
    begun = time.process_time()
    found = judge(calls, ranks, [group], size)
    assert time.process_time() - begun < 8
    assert [one.rule for one in found] == rules
