"""Faults of jobs with thousands of ranks: a verdict takes about as much time as there are ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from otel_fr.match import Call, Group, Rank
from tests.support.evidence import call, judge, rank, world

SIZE = 4_000
_Job = tuple[list[Call], list[Rank]]


def network_failed(group: Group) -> _Job:
    """All ranks wait in three collectives, because their hosts ran ahead of their devices."""
    calls = [call(r, number, group=group) for r in group.ranks for number in (5, 6, 7)]
    return calls, [rank(r, 7, 4) for r in group.ranks]


@pytest.mark.parametrize(("fault", "rule"), [(network_failed, "all_joined")])
def test_a_verdict_takes_no_longer_than_a_moment(fault: Callable[[Group], _Job], rule: str) -> None:
    group = world(SIZE)
    calls, ranks = fault(group)
    begun = time.process_time()
    found = judge(calls, ranks, [group], SIZE)
    assert time.process_time() - begun < 5
    assert [one.rule for one in found] == [rule]
