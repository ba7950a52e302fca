"""Ranks that somebody stopped before their peers ended or failed: whatever happens to these, that is the cause."""

from __future__ import annotations

import itertools
from signal import SIGABRT, SIGINT, SIGKILL, SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group
from otel_fr.match.facts.ranks import by_user, was_stopped
from tests.support.evidence import WINDOW, blamed, call, cause, rank, verdict
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


def lasted(rank: int, number: int, state: CallState, seconds: float, **more: Any) -> Call:
    """Rank's call; it has lasted, or did until it failed, for so long."""
    if state is CallState.FAILED:
        more |= {"duration": seconds, "error": "collective_failed"}
    return call(rank, number, state, age=seconds, **more)


def found_of(
    waited: float, idle: float, peers: tuple[str, ...], newest: Call | None = None, gap: float | None = None
) -> list[Finding]:
    """Rank 1 was stopped after ``idle`` seconds without a call; the others wait for it, or did so, in number 6.

    Args:
        gap: seconds from the end of number 5 until the others called number 6.
    """
    calls = [newest or lasted(1, 5, CallState.COMPLETED, idle)]
    ranks = [rank(1, 5, counts={"p": (8, 8)}, idle=idle, **STOPPED)]
    for number, end in zip((0, 2), peers, strict=True):
        state = CallState.FAILED if end.startswith("failed") else CallState.IN_FLIGHT
        calls.append(lasted(number, 6, state, waited, gap=gap))
        ranks.append(rank(number, 6, **{"idle": None, **ENDS[end]}))
    return causes(verdict(calls, ranks, PAIR))


@pytest.mark.parametrize("peers", PEERS, ids=" and ".join)
def test_a_rank_that_was_stopped_long_before_its_peers_ended_is_dead(peers: tuple[str, str]) -> None:
    (found,) = found_of(9.0, 0.2, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_DEAD, (1,), None)


@pytest.mark.parametrize("peers", [peers for peers in PEERS if set(peers) != {"running"}], ids=" and ".join)
def test_a_rank_that_was_away_until_its_peers_ended_was_stopped_for_that(peers: tuple[str, str]) -> None:
    (found,) = found_of(9.0, 9.2, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_a_rank_that_was_stopped_while_all_computed_for_long_is_dead() -> None:
    """Its peers came 8 s after the call before, and waited for 9 s."""
    (found,) = found_of(9.0, 8.5, ("stopped", "stopped"), gap=8.0)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (1,))


def test_a_rank_that_left_a_collective_out_and_went_on_was_stopped_for_that() -> None:
    elsewhere = lasted(1, 8, CallState.COMPLETED, 0.2, group="p", record=9)
    (found,) = found_of(9.0, 0.2, ("failed", "failed"), elsewhere)
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (1,))


@pytest.mark.parametrize(
    "peers",
    [("failed", second) for second in ("failed", "failed, stopped", "running", "failed, unheard")],
    ids=" and ".join,
)
def test_a_rank_is_dead_if_its_end_closed_the_connections_to_its_peers(peers: tuple[str, str]) -> None:
    (found,) = found_of(0.1, 0.3, peers)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_DEAD, (1,), None)


def test_a_rank_whose_peers_had_waited_when_its_end_closed_the_connections_is_missing() -> None:
    """Somebody stopped the rank that all waited for."""
    (found,) = found_of(WINDOW, WINDOW, ("failed", "failed"))
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_of_two_ranks_one_of_which_closed_the_connections_none_is_blocked_on_the_host() -> None:
    ranks = [rank(0, 6, idle=None, **CLOSED), *(rank(r, 5, idle=0.3, **STOPPED) for r in (1, 2))]
    found = cause([lasted(0, 6, CallState.FAILED, 0.1)], ranks)
    assert (found.culprit_ranks, found.stuck_on) == ((1, 2), None)


def test_a_rank_that_had_destroyed_its_groups_is_missing_however_it_was_stopped() -> None:
    """It was not its end that closed the connections."""
    calls = [lasted(1, 5, CallState.COMPLETED, 9.0), *(lasted(r, 6, CallState.FAILED, 0.3) for r in (0, 2))]
    ranks = [rank(1, 5, **STOPPED), *(rank(r, 6, idle=None, **CLOSED) for r in (0, 2))]
    assert blamed(calls, ranks) == [(Category.RANK_DEAD, (1,))]
    ranks[0].progress["w"].destroyed = True
    assert blamed(calls, ranks) == [(Category.MISSING_RANK, (1,))]


@pytest.mark.parametrize(("idle", "category"), [(0.3, Category.RANK_DEAD), (0.6, Category.MISSING_RANK)])
def test_of_two_stopped_ranks_the_one_that_ended_first_closed_the_connections(idle: float, category: Category) -> None:
    """Rank 2 was stopped while it waited, 0.5 s after number 5; rank 1, which did not join, before or after."""
    calls = [lasted(0, 6, CallState.FAILED, 0.1, gap=0.2), lasted(2, 6, CallState.IN_FLIGHT, 0.3, gap=0.2)]
    ranks = [rank(0, 6, idle=None, **CLOSED), rank(1, 5, idle=idle, **STOPPED), rank(2, 6, idle=0.3, **STOPPED)]
    found = cause(calls, ranks)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (category, (1,), None)


KILLED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL}
HALTED: dict[str, Any] = {**KILLED, "python_blocked": True, "doing": "stopped by a signal (SIGSTOP)"}
INTERRUPTED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGINT}


def swept(absent: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> tuple[Category, tuple[int, ...]]:
    """Rank 1 did not join; ranks 0 and 2 waited for it, and ended after ``waited`` seconds."""
    calls = []
    for number, info in ((0, first), (2, second)):
        state = CallState.FAILED if info["signal"] == SIGINT or "exception" in info else CallState.IN_FLIGHT
        calls.append(lasted(number, 6, state, info["waited"], gap=0.1))
    calls.append(lasted(1, 5, CallState.COMPLETED, absent["idle"]))
    ended = [{key: value for key, value in info.items() if key != "waited"} for info in (first, second)]
    found = cause(calls, [rank(0, 6, **ended[0]), rank(1, 5, **absent), rank(2, 6, **ended[1])])
    return found.category, found.culprit_ranks


def test_ranks_that_cannot_react_to_ctrl_c_are_not_dead_when_their_launcher_kills_them() -> None:
    """The call of rank 2 fails as rank 0 is killed, and it reacts only then."""
    for last in (INTERRUPTED, {**KILLED, "exception": "KeyboardInterrupt"}):
        found = swept({**HALTED, "idle": 39.2}, {**KILLED, "waited": 39.0}, {**last, "waited": 39.3})
        assert found == (Category.RANK_STUCK, (1,))


@pytest.mark.parametrize("stop", [STOPPED, INTERRUPTED], ids=["SIGTERM", "SIGINT"])
def test_ranks_that_are_killed_after_another_was_stopped_are_not_dead(stop: dict[str, Any]) -> None:
    found = swept({**stop, "idle": 9.0}, {**KILLED, "waited": 39.0}, {**KILLED, "waited": 39.0})
    assert found == (Category.MISSING_RANK, (1,))


@pytest.mark.parametrize(
    ("stop", "seconds", "reason"),
    [(INTERRUPTED, 8.0, ""), (STOPPED, 1.9, ""), (INTERRUPTED, 39.0, "out of memory (cgroup limit 4.0 GiB)")],
    ids=["before Ctrl-C", "too soon after SIGTERM", "by the kernel"],
)
def test_a_rank_that_was_killed_for_another_reason_is_dead(stop: dict[str, Any], seconds: float, reason: str) -> None:
    at = 9.5 if stop is INTERRUPTED else 0.1
    found = swept(
        {**stop, "idle": at}, {**KILLED, "waited": seconds, "kill_reason": reason}, {**INTERRUPTED, "waited": 39.0}
    )
    assert found == (Category.RANK_DEAD, (0,))


@pytest.mark.parametrize(
    ("idle", "is_fault"),
    [((9.0, 9.6, 8.9), False), ((9.0, 40.0, 39.5), True)],
    ids=["at once", "one before the others"],
)
def test_ranks_that_were_all_killed_at_once_are_no_fault(idle: tuple[float, ...], is_fault: bool) -> None:
    """``pkill -9``, or scancel of ranks that catch SIGTERM. A launcher also kills, 30 s later, who does not react."""
    ranks = [rank(r, 4, **{**KILLED, "idle": seconds}) for r, seconds in enumerate(idle)]
    calls = [call(r, 4, CallState.COMPLETED) for r in range(3)]
    assert bool(causes(verdict(calls, ranks))) is is_fault


def test_a_rank_that_was_away_before_another_one_was_killed_stays_a_fault() -> None:
    """Somebody kills a rank of a job that hangs, and the launcher ends the others."""
    ends = {0: KILLED, 1: {**STOPPED, "idle": 35.1}, 2: STOPPED, 3: STOPPED}
    ranks = [rank(r, 4 if r == 1 else 5, 4, **end) for r, end in ends.items()]
    found = causes(verdict([call(r, age=35.0) for r in (0, 2, 3)], ranks, size=4))
    assert [(one.category, one.culprit_ranks) for one in found] == [
        (Category.MISSING_RANK, (1,)),
        (Category.RANK_DEAD, (0,)),
    ]


@pytest.mark.parametrize("doing", [HALTED["doing"], "waiting for another thread"])
def test_a_halted_rank_that_its_launcher_killed_is_named_beside_the_one_that_died(doing: str) -> None:
    """Rank 2 dies, torchrun stops the others, and kills rank 1 in the end. Without SIGSTOP it may wait for rank 2."""
    died: dict[str, Any] = {"ending": Ending.RAISED, "exception": "ValueError: x", "idle": 1.0, "ended_for": 30.0}
    ranks = [rank(0, 5, 4, **STOPPED), rank(1, 4, **HALTED, idle=31.0, ended_for=0.0), rank(2, 4, **died)]
    ranks[1].doing = doing
    calls = [call(0, age=1.0, gap=0.0), *(call(r, 4, CallState.COMPLETED) for r in (1, 2))]
    found = {one.culprit_ranks: one.category for one in causes(verdict(calls, ranks))}
    halted = {(1,): Category.RANK_STUCK} if doing == HALTED["doing"] else {}
    assert found == {**halted, (2,): Category.RANK_DEAD}


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_rank_whose_handler_exits_without_an_error_was_stopped(signal: str) -> None:
    """Rank 1 hung; ranks 0 and 2 reacted to the signal once its end had ended their calls."""
    told: dict[str, Any] = {"ending": Ending.RAISED, "exit_code": 0, "exit_message": f"while handling {signal}"}
    hung = rank(1, 4, idle=9.0, site="train.py:9 load", **told)
    broken = [call(r, 5, CallState.FAILED, age=None, duration=8.8, error="collective_failed") for r in (0, 2)]
    found = cause(broken, [rank(0, 5, 4, **told), hung, rank(2, 5, 4, **told)])
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (1,))
    assert all(was_stopped(one) for one in (hung, rank(0, **told)))
    assert by_user(hung) is (signal == "SIGINT")
