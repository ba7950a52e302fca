"""Ranks that somebody stopped before their peers ended or failed: whatever happens to these, that is the cause."""

from __future__ import annotations

import dataclasses
import itertools
from signal import SIGABRT, SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Progress, Rank
from tests.support.evidence import SUM, WINDOW, WORLD, judge
from tests.support.verdicts import causes

PAIR = Group("p", "1", "pair", (0, 1))
CLOSED: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: [gloo] Connection closed by peer"}
STOPPED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGTERM}

ENDS: dict[str, dict[str, Any]] = {
    "running": {"idle": 9.0},
    "failed": CLOSED,
    "failed, stopped": STOPPED,
    "stopped": STOPPED,
    "failed, unheard": {"ending": Ending.UNKNOWN},
    "aborted": {"ending": Ending.KILLED, "signal": SIGABRT},
    "raised elsewhere": {"ending": Ending.RAISED, "exception": "TimeoutError: the step takes too long"},
}
"""How a peer that waits may be or end."""
KNOWN = [end for end in ENDS if end != "failed, unheard"]
PEERS = list(itertools.product(KNOWN, repeat=2))


def call(rank: int, number: int, state: CallState, seconds: float, **more: Any) -> Call:
    """Rank's call; it has lasted, or did until it failed, for so long."""
    failed = state is CallState.FAILED
    made = Call(
        rank=rank, group="w", stream="collective", sequence_id=number, record=number, signature=SUM, state=state,
        age=seconds, duration=seconds if failed else None, error="collective_failed" if failed else None,
    )  # fmt: skip
    return dataclasses.replace(made, **more)


def verdict(
    waited: float, idle: float, peers: tuple[str, ...], newest: Call | None = None, gap: float | None = None
) -> list[Finding]:
    """Rank 1 was stopped after ``idle`` seconds without a call; the others wait for it, or did so, in number 6.

    Args:
        gap: seconds from the end of number 5 until the others called number 6.
    """
    calls = [newest or call(1, 5, CallState.COMPLETED, idle)]
    ranks = [Rank(1, idle=idle, progress={"w": Progress(5, 5), "p": Progress(8, 8)}, **STOPPED)]
    for rank, end in zip((0, 2), peers, strict=True):
        state = CallState.FAILED if end.startswith("failed") else CallState.IN_FLIGHT
        calls.append(call(rank, 6, state, waited, gap=gap))
        ranks.append(Rank(rank, progress={"w": Progress(6, 5)}, **ENDS[end]))
    return causes(judge(calls, ranks, (WORLD, PAIR), 3))


@pytest.mark.parametrize("peers", PEERS, ids=" and ".join)
def test_a_rank_that_was_stopped_long_before_its_peers_ended_is_dead(peers: tuple[str, str]) -> None:
    (found,) = verdict(9.0, 0.2, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_DEAD, (1,), None)
    assert "rank 1 was alive and in no call when it was stopped from outside by signal 15" in found.summary


@pytest.mark.parametrize("peers", [peers for peers in PEERS if set(peers) != {"running"}], ids=" and ".join)
def test_a_rank_that_was_away_until_its_peers_ended_was_stopped_for_that(peers: tuple[str, str]) -> None:
    (found,) = verdict(9.0, 9.2, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_a_rank_that_was_stopped_while_all_computed_for_long_is_dead() -> None:
    """Its peers came 8 s after the call before, and waited for 9 s."""
    (found,) = verdict(9.0, 8.5, ("stopped", "stopped"), gap=8.0)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (1,))


def test_a_rank_that_left_a_collective_out_and_went_on_was_stopped_for_that() -> None:
    elsewhere = call(1, 8, CallState.COMPLETED, 0.2, group="p", record=9)
    (found,) = verdict(9.0, 0.2, ("failed", "failed"), elsewhere)
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (1,))


@pytest.mark.parametrize(
    "peers",
    [("failed", second) for second in ("failed", "failed, stopped", "running", "failed, unheard")],
    ids=" and ".join,
)
def test_a_rank_is_dead_if_its_end_closed_the_connections_to_its_peers(peers: tuple[str, str]) -> None:
    (found,) = verdict(0.1, 0.3, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_DEAD, (1,), None)


def test_a_rank_whose_peers_had_waited_when_its_end_closed_the_connections_is_missing() -> None:
    """Somebody stopped the rank that all waited for."""
    (found,) = verdict(WINDOW, WINDOW, ("failed", "failed"))
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_of_two_ranks_one_of_which_closed_the_connections_none_is_blocked_on_the_host() -> None:
    calls = [call(0, 6, CallState.FAILED, 0.1)]
    ranks = [Rank(0, progress={"w": Progress(6, 5)}, **CLOSED)]
    ranks += [Rank(r, idle=0.3, progress={"w": Progress(5, 5)}, **STOPPED) for r in (1, 2)]
    (found,) = causes(judge(calls, ranks, (WORLD,), 3))
    assert (found.culprit_ranks, found.stuck_on) == ((1, 2), None)
    assert "blocked on the host" not in found.summary


def test_a_rank_that_had_destroyed_its_groups_is_missing_however_it_was_stopped() -> None:
    """It was not its end that closed the connections."""
    calls = [call(1, 5, CallState.COMPLETED, 9.0), *(call(rank, 6, CallState.FAILED, 0.3) for rank in (0, 2))]
    ranks = [Rank(1, idle=9.0, progress={"w": Progress(5, 5, destroyed=True)}, **STOPPED)]
    ranks += [Rank(rank, progress={"w": Progress(6, 5)}, **CLOSED) for rank in (0, 2)]
    (cause,) = causes(judge(calls, ranks, (WORLD,), 3))
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (1,))
    ranks[0] = Rank(1, idle=9.0, progress={"w": Progress(5, 5)}, **STOPPED)
    (cause,) = causes(judge(calls, ranks, (WORLD,), 3))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (1,))


@pytest.mark.parametrize(("idle", "category"), [(0.3, Category.RANK_DEAD), (0.6, Category.MISSING_RANK)])
def test_of_two_stopped_ranks_the_one_that_ended_first_closed_the_connections(idle: float, category: Category) -> None:
    """Rank 2 was stopped while it waited, 0.5 s after number 5; rank 1, which did not join, before or after."""
    calls = [call(0, 6, CallState.FAILED, 0.1, gap=0.2), call(2, 6, CallState.IN_FLIGHT, 0.3, gap=0.2)]
    ranks = [
        Rank(0, progress={"w": Progress(6, 5)}, **CLOSED),
        Rank(1, idle=idle, progress={"w": Progress(5, 5)}, **STOPPED),
        Rank(2, idle=0.3, progress={"w": Progress(6, 5)}, **STOPPED),
    ]
    (found,) = causes(judge(calls, ranks, (WORLD,), 3))
    assert (found.category, found.culprit_ranks, found.stuck_on) == (category, (1,), None)
