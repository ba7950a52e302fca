"""Failed calls that their ranks caught: no rank waits there, and no later end comes from them."""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Group, Progress, Rank, Signature
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
SIDE = Group("s", "1", "side", (0, 1))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")
RECV = Signature("recv", (), ((1,),), (), ("Float",), peer=0, tag=0)
ANY = Signature("recv", (), ((1,),), (), ("Float",), tag=0, any_source=True)


def poll(*, ago: float, signature: Signature = RECV, took: float = 2.0) -> Call:
    """A receive of rank 1 that failed ``ago`` seconds ago at its timeout."""
    return Call(
        rank=1, group="s", stream="p2p", sequence_id=1, record=3, signature=signature, state=CallState.FAILED,
        age=ago + took, duration=took, timeout=took, error="timeout", site="train.py:20 poll",
    )  # fmt: skip


def step(rank: int, number: int, state: CallState = CallState.COMPLETED, *, age: float | None, **more: Any) -> Call:
    return Call(
        rank=rank, group="w", stream="collective", sequence_id=number, record=10 + number, signature=SUM, state=state,
        age=age, site="train.py:30 step", **more,
    )  # fmt: skip


def rank(number: int, reached: int = 9, *, done: int | None = None, destroyed: bool = False, **more: Any) -> Rank:
    progress = Progress(reached, reached if done is None else done, destroyed=destroyed)
    side = Progress(0, 0, destroyed=destroyed)
    return Rank(number, idle=0.1, progress={"w": progress, "s": side} if number < 2 else {"w": progress}, **more)


@pytest.mark.parametrize("ago", [0.2, 60.0])
@pytest.mark.parametrize("ending", [{}, {"ending": Ending.KILLED, "signal": SIGTERM}])
def test_a_receive_that_a_rank_gave_up_accuses_no_rank_that_leaves_later(ago: float, ending: dict[str, Any]) -> None:
    left = rank(0, destroyed=True, ending=Ending.CLEAN)
    calls = [poll(ago=ago), step(1, 9, age=0.1, duration=0.05)]
    assert judge(calls, [left, rank(1, **ending), rank(2, **ending)], (WORLD, SIDE)) == []


@pytest.mark.parametrize("after", [None, step(1, 9, CallState.IN_FLIGHT, age=0.1), step(1, 9, age=5.0, duration=0.1)])
def test_a_rank_that_has_not_gone_on_still_waits_there(after: Call | None) -> None:
    left = rank(0, destroyed=True, exiting=True)
    calls = [poll(ago=1.0), *([after] if after is not None else [])]
    (found,) = causes(judge(calls, [left, rank(1, done=8), rank(2)], (WORLD, SIDE)))
    assert found.culprit_ranks == (0,)


def test_a_receive_from_any_source_that_a_rank_gave_up_hides_no_culprit() -> None:
    calls = [
        poll(ago=60.0, signature=ANY),
        step(1, 9, age=30.0, duration=0.1),
        *[step(r, 10, CallState.IN_FLIGHT, age=20.0) for r in (0, 2)],
    ]
    still = Rank(1, idle=29.0, progress={"w": Progress(9, 9), "s": Progress(0, 0)}, site="train.py:40 load")
    (found,) = causes(judge(calls, [rank(0, 10, done=9), still, rank(2, 10, done=9)], (WORLD, SIDE)))
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
    peers = [rank(r, 10, done=9, ending=Ending.RAISED, exception="RuntimeError: [gloo] closed") for r in (0, 2)]
    found = causes(judge(calls, [peers[0], rank(1, **end), peers[1]], (WORLD, SIDE)))
    dead = [finding for finding in found if finding.category is Category.RANK_DEAD]
    assert [finding.culprit_ranks for finding in dead] == ([(1,)] if is_culprit else [])


CLOSED = "RuntimeError: [gloo/transport] Connection closed by peer"


def pair(rank_: int, *, error: str, took: float, ago: float = 12.0, gap: float = 1.0) -> Call:
    """An all_reduce of the group of ranks 0 and 1 that failed ``ago`` seconds ago."""
    return Call(
        rank=rank_, group="s", stream="collective", sequence_id=1, record=3, signature=SUM, state=CallState.FAILED,
        age=ago + took, duration=took, gap=gap, error=error, site="train.py:20 pair",
    )  # fmt: skip


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
    ranks = [rank(0, 10, done=9, **stop), rank(1, 10, done=9, **stop), rank(2, **died)]
    (found,) = judge([*pair_failed(), *later], ranks, (WORLD, SIDE))
    assert (found.category, found.culprit_ranks, found.sequence_id) == (Category.RANK_DEAD, (2,), 10)


def test_a_caught_failure_is_over_while_its_ranks_wait_for_another_rank() -> None:
    later = [step(r, 10, CallState.IN_FLIGHT, age=3.5) for r in (0, 1)]
    still = Rank(2, idle=3.6, progress={"w": Progress(9, 9)})
    ranks = [rank(r, 10, done=9, completed_age=4.0) for r in (0, 1)]
    (found,) = judge([*pair_failed(), *later], [*ranks, still], (WORLD, SIDE))
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (2,))


def test_calls_that_completed_before_the_failure_show_no_rank_that_went_on() -> None:
    ranks = [rank(r, 9, completed_age=18.0) for r in (0, 1)]
    (found,) = judge(pair_failed(), [*ranks, rank(2)], (WORLD, SIDE))
    assert (found.category, found.culprit_ranks) == (Category.STRAGGLER, (1,))
