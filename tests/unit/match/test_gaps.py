"""A rank whose recording had errors is no ground for a verdict: what it seems to have left out may be a gap."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Rank, Signature
from tests.support.evidence import SUM, WORLD, call, judge, rank


def verdict(calls: list[Call], ranks: list[Rank], *, gaps: int) -> list[Finding]:
    return judge(calls, [dataclasses.replace(info, has_gaps=info.rank == gaps) for info in ranks], (WORLD,), 3)


@pytest.mark.parametrize("other", [SUM._replace(input_sizes=((5,),)), Signature("broadcast", ((4,),), ((4,),), root=0)])
def test_a_call_that_does_not_fit(other: Signature) -> None:
    calls = [call(0, 5), call(1, 5), call(2, 5, signature=other)]
    ranks = [rank(number, 5, 4) for number in range(3)]
    assert verdict(calls, ranks, gaps=-1)[0].culprit_ranks == (2,)
    assert [finding.culprit_ranks for finding in verdict(calls, ranks, gaps=2)] == [()]


def test_another_rank_that_did_not_join_is_named() -> None:
    (found,) = verdict([call(0, 5)], [rank(0, 5, 4), rank(1, 4, 3), rank(2, 4, 3)], gaps=2)
    assert found.culprit_ranks == (1,)


def test_the_rank_behind_is_named_where_another_has_gaps() -> None:
    found = verdict([call(0, 4), call(1, 5), call(2, 5)], [rank(0, 4, 3), rank(1, 5, 4), rank(2, 5, 4)], gaps=1)
    assert all(1 not in finding.culprit_ranks for finding in found)


def test_how_it_ended_still_counts() -> None:
    ranks = [rank(0, 5, 4), rank(1, 5, 4), rank(2, 4, 3, ending=Ending.KILLED, signal=9)]
    (found,) = verdict([call(0, 5), call(1, 5)], ranks, gaps=2)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (2,))


@pytest.mark.parametrize("exception", ["RuntimeError: Timed out waiting 6000ms for recv", "ValueError: bad sample"])
def test_an_exception_of_communication_shows_the_fault_of_another(exception: str) -> None:
    """The call that failed is not known."""
    raised = rank(0, 5, 4, ending=Ending.RAISED, exception=exception)
    found = verdict([call(0, 5, CallState.FAILED, duration=6.0)], [raised, rank(1, 4), rank(2, 4)], gaps=0)
    assert {r for one in found for r in one.culprit_ranks} == (set() if "Timed out" in exception else {0})


@pytest.mark.parametrize("known", [{"heard_at": 1.7e9}, {"file": "trace_2"}], ids=["fallen silent", "outdated file"])
def test_a_rank_of_which_nothing_is_heard_any_more_was_not_left_out_for_want_of_room(known: dict[str, Any]) -> None:
    calls = [call(0, 5), call(1, 5)]
    ranks = [rank(0, 5, 4), rank(1, 5, 4), rank(2, 4, ending=Ending.UNKNOWN, complete=False, **known)]
    (found,) = verdict(calls, ranks, gaps=2)
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, ())
    assert found.summary.endswith("because otel-fr could not record some calls there")


def test_a_healthy_job() -> None:
    calls = [call(number, 5, CallState.COMPLETED) for number in range(3)]
    assert verdict(calls, [rank(number, 6, 5) for number in range(3)], gaps=1) == []
