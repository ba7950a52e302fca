"""Failed calls: those that their ranks caught hold up nobody and end nobody; those that the backend refused."""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Group, Rank, Signature
from tests.support.evidence import WORLD, blamed, call, judge, rank
from tests.support.verdicts import causes

SIDE = Group("s", "1", "side", (0, 1))
RECV = Signature("recv", (), ((1,),), (), ("Float",), peer=0, tag=0)
ANY = Signature("recv", (), ((1,),), (), ("Float",), tag=0, any_source=True)


def poll(*, ago: float, signature: Signature = RECV, took: float = 2.0) -> Call:
    """A receive of rank 1 that failed ``ago`` seconds ago at its timeout."""
    return call(
        1, 1, CallState.FAILED, signature, group=SIDE, stream="p2p", record=3,
        age=ago + took, duration=took, timeout=took, error="timeout", site="train.py:20 poll",
    )  # fmt: skip


def step(rank: int, number: int, state: CallState = CallState.COMPLETED, *, age: float | None, **more: Any) -> Call:
    return call(rank, number, state, record=10 + number, age=age, site="train.py:30 step", **more)


def info(number: int, reached: int = 9, done: int | None = None, **more: Any) -> Rank:
    counts = {"s": (0, 0)} if number < 2 else None
    return rank(number, reached, done, counts=counts, idle=0.1, **more)


def has_left(info: Rank) -> Rank:
    for progress in info.progress.values():
        progress.destroyed = True
    return info


@pytest.mark.parametrize("ago", [0.2, 60.0])
@pytest.mark.parametrize("ending", [{}, {"ending": Ending.KILLED, "signal": SIGTERM}])
def test_a_receive_that_a_rank_gave_up_accuses_no_rank_that_leaves_later(ago: float, ending: dict[str, Any]) -> None:
    left = has_left(info(0, ending=Ending.CLEAN))
    calls = [poll(ago=ago), step(1, 9, age=0.1, duration=0.05)]
    assert judge(calls, [left, info(1, **ending), info(2, **ending)], (WORLD, SIDE)) == []


@pytest.mark.parametrize("after", [None, step(1, 9, CallState.IN_FLIGHT, age=0.1), step(1, 9, age=5.0, duration=0.1)])
def test_a_rank_that_has_not_gone_on_still_waits_there(after: Call | None) -> None:
    left = has_left(info(0, exiting=True))
    calls = [poll(ago=1.0), *([after] if after is not None else [])]
    (found,) = causes(judge(calls, [left, info(1, 9, 8), info(2)], (WORLD, SIDE)))
    assert found.culprit_ranks == (0,)


def test_a_receive_from_any_source_that_a_rank_gave_up_hides_no_culprit() -> None:
    calls = [
        poll(ago=60.0, signature=ANY),
        step(1, 9, age=30.0, duration=0.1),
        *[step(r, 10, CallState.IN_FLIGHT, age=20.0) for r in (0, 2)],
    ]
    still = rank(1, 9, counts={"s": (0, 0)}, idle=29.0, site="train.py:40 load")
    (found,) = causes(judge(calls, [info(0, 10, 9), still, info(2, 10, 9)], (WORLD, SIDE)))
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


ELSEWHERE = {"ending": Ending.RAISED, "exit_code": 1, "exception_site": "train.py:50 check"}


@pytest.mark.parametrize(
    ("end", "ago", "is_culprit"),
    [
        ({**ELSEWHERE, "exception": "ValueError: bad sample"}, 60.0, True),
        ({**ELSEWHERE, "exception": "ValueError: not saved"}, 1.0, False),
        ({**ELSEWHERE, "exception": "RuntimeError: [gloo/transport] Timed out waiting 2000ms"}, 60.0, False),
        ({**ELSEWHERE, "exception": "ValueError: again", "exception_site": "train.py:20 poll"}, 60.0, False),
        ({"ending": Ending.RAISED, "exit_code": 1}, 60.0, False),
    ],
    ids=["unrelated", "while it saved its state", "of the backend", "raised again", "exited"],
)
def test_an_earlier_failure_excuses_only_the_exception_that_it_may_have_caused(
    end: dict[str, Any], ago: float, is_culprit: bool
) -> None:
    calls = [
        poll(ago=ago),
        step(1, 9, age=0.5, duration=0.1),
        *[step(r, 10, CallState.FAILED, age=0.4, duration=0.2, error="collective_failed") for r in (0, 2)],
    ]
    peers = [info(r, 10, 9, ending=Ending.RAISED, exception="RuntimeError: [gloo] closed") for r in (0, 2)]
    found = causes(judge(calls, [peers[0], info(1, **end), peers[1]], (WORLD, SIDE)))
    dead = [finding for finding in found if finding.category is Category.RANK_DEAD]
    assert [finding.culprit_ranks for finding in dead] == ([(1,)] if is_culprit else [])


CLOSED = "RuntimeError: [gloo/transport] Connection closed by peer"


def pair(rank: int, *, error: str, took: float, ago: float = 12.0, gap: float = 1.0) -> Call:
    """An all_reduce of the group of ranks 0 and 1 that failed ``ago`` seconds ago."""
    failed: dict[str, Any] = {"age": ago + took, "duration": took, "gap": gap, "error": error}
    return call(rank, 1, CallState.FAILED, group=SIDE, record=3, site="train.py:20 pair", **failed)


def pair_failed() -> list[Call]:
    """Rank 1 was late: rank 0 timed out, and then its own call failed."""
    return [pair(0, error="timeout", took=5.0), pair(1, error="collective_failed", took=0.1, gap=8.0)]


def test_a_later_fault_does_not_bring_back_a_failure_that_its_ranks_had_caught() -> None:
    stop: dict[str, Any] = {
        "ending": Ending.RAISED,
        "exception": CLOSED,
        "exception_site": "train.py:30 step",
        "completed_age": 4.0,
    }
    died: dict[str, Any] = {"ending": Ending.RAISED, "exception": "IndexError: token id out of range"}
    later = [step(r, 10, CallState.FAILED, age=3.5, duration=3.4, error="collective_failed") for r in (0, 1)]
    ranks = [info(0, 10, 9, **stop), info(1, 10, 9, **stop), info(2, **died)]
    (found,) = judge([*pair_failed(), *later], ranks, (WORLD, SIDE))
    assert (found.category, found.culprit_ranks, found.sequence_id) == (Category.RANK_DEAD, (2,), 10)


def test_a_caught_failure_is_over_while_its_ranks_wait_for_another_rank() -> None:
    later = [step(r, 10, CallState.IN_FLIGHT, age=3.5) for r in (0, 1)]
    still = rank(2, 9, idle=3.6)
    ranks = [info(r, 10, 9, completed_age=4.0) for r in (0, 1)]
    (found,) = judge([*pair_failed(), *later], [*ranks, still], (WORLD, SIDE))
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (2,))


def test_calls_that_completed_before_the_failure_show_no_rank_that_went_on() -> None:
    ranks = [info(r, 9, completed_age=18.0) for r in (0, 1)]
    (found,) = judge(pair_failed(), [*ranks, info(2)], (WORLD, SIDE))
    assert (found.category, found.culprit_ranks) == (Category.STRAGGLER, (1,))


@pytest.mark.parametrize(
    ("said", "durations", "verdict"),
    [
        (
            "ProcessGroupGloo::allgather: invalid tensor size at index 1",
            (0.0, 0.4, 0.0),
            (Category.RANK_DEAD, (0, 1, 2)),
        ),
        (
            "[gloo/transport/tcp/pair.cc:544] Connection closed by peer",
            (0.0, 0.4, 0.0),
            (Category.STALLED_COLLECTIVE, ()),
        ),
        (
            "ProcessGroupGloo::allgather: invalid tensor size at index 1",
            (0.0, 9.0, 0.0),
            (Category.STALLED_COLLECTIVE, ()),
        ),
    ],
    ids=["refused", "connection", "not at once"],
)
def test_who_is_named_for_a_collective_that_failed_on_all_ranks(
    said: str, durations: tuple[float, ...], verdict: tuple[Category, tuple[int, ...]]
) -> None:
    """What the backend refuses at once on all ranks is the program's fault; what broke later has no culprit by that."""
    ranks = [rank(r, 5, 4, ending=Ending.RAISED, exception=f"RuntimeError: {said}") for r in range(3)]
    error = "collective_failed"
    calls = [call(r, 5, CallState.FAILED, age=None, duration=took, error=error) for r, took in enumerate(durations)]
    assert blamed(calls, ranks) == [verdict]
