"""A host that is lost, or not reached, in the middle of a call: what it has sent was enough for some ranks only."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Place, Rank
from tests.support.evidence import call, cause, rank

ADDRESSES = {number: f"10.0.0.{number}" for number in range(3)}
LOST: dict[str, Any] = {"ending": Ending.UNKNOWN, "heard_at": 1000.0, "complete": False}


def found(changes: dict[int, dict[str, Any]]) -> Finding:
    """Of the ranks of three hosts, all but rank 1 have completed the call, and those that live wait in the next one."""
    ranks: list[Rank] = []
    calls: list[Call] = []
    for number in range(6):
        here: dict[str, Any] = {"place": Place(f"n{number // 2}"), "addresses": (ADDRESSES[number // 2],)}
        here |= changes.get(number, {})
        is_lost = here.get("ending") is Ending.UNKNOWN
        ranks.append(rank(number, 5 if number == 1 or is_lost else 6, 4 if number == 1 or is_lost else 5, **here))
        if number == 1:
            calls.append(call(1, 5))
        elif not is_lost:
            calls += [call(number, 5, CallState.COMPLETED), call(number, 6)]
    return cause(calls, ranks, size=6)


def test_the_lost_host_is_named_and_not_the_rank_that_waits_for_it() -> None:
    one = found({2: LOST, 3: LOST})
    assert (one.rule, one.category, one.culprit_ranks) == ("cut_off_in_call", Category.STALLED_COLLECTIVE, (2, 3))
    assert (one.stuck_on, one.waiting_ranks) == ("lost", (0, 1, 4, 5))


@pytest.mark.parametrize("who", [0, 1])
def test_two_hosts_that_do_not_reach_each_other_are_both_named(who: int) -> None:
    one = found({who: {"unreached": (f"{ADDRESSES[1]}:41234",)}})
    assert (one.rule, one.category, one.culprit_ranks) == ("cut_off_in_call", Category.STALLED_COLLECTIVE, ())
    assert one.summary.startswith("hosts n0 and n1 do not reach each other; rank 1 waits in all_reduce number 5")


@pytest.mark.parametrize(
    "elsewhere",
    [{}, {0: {"unreached": ("192.0.2.7:2049",)}}, {2: LOST}],
    ids=["nothing", "a server that is not reached", "one silent rank of a host"],
)
def test_without_that_its_own_device_keeps_the_rank(elsewhere: dict[int, dict[str, Any]]) -> None:
    one = found(elsewhere)
    assert (one.rule, one.category, one.culprit_ranks) == ("device_not_completing", Category.RANK_STUCK, (1,))
