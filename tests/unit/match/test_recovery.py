"""A second fault while ranks recover from a failure that they caught: both are named, and nobody who had gone on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, NewGroup, Rank, Signature
from tests.support.evidence import LARGE, SUM, call, judge, rank, world
from tests.support.verdicts import causes

WORLD = world(4)
ALL, SURVIVORS = (0, 1, 2, 3), (0, 1, 2)
CLOSED = "RuntimeError: [gloo/transport] Connection closed by peer"
RAISED: dict[str, Any] = {"ending": Ending.RAISED, "exit_code": 1, "exception_site": "train.py:50 reload"}


def failed(rank: int, *, ago: float = 8.0, took: float = 6.0, number: int = 5, group: Group = WORLD) -> Call:
    """A call that failed ``ago`` seconds ago: at its timeout of 6 s, or at once."""
    error = "timeout" if took == 6.0 else "collective_failed"
    return call(
        rank, number, CallState.FAILED, group=group, age=ago + took, duration=took, timeout=6.0, gap=0.5,
        error=error, site="train.py:30 step",
    )  # fmt: skip


def creation(rank: int, ranks: tuple[int, ...] = ALL, **more: Any) -> Call:
    """A call that makes the group with which the ranks go on."""
    new = Signature("new_group", new_group=NewGroup("1", "again", ranks))
    fields = {"record": 9, "age": 7.0, "site": "train.py:60 recover", **more}
    return call(rank, 1, CallState.IN_FLIGHT, new, group=WORLD, stream="group", **fields)


def named(findings: list[Finding]) -> list[tuple[Category, tuple[int, ...]]]:
    return sorted((finding.category, finding.culprit_ranks) for finding in causes(findings))


def late_rank() -> list[Call]:
    """Ranks 0 to 2 timed out, and then rank 3 came."""
    late = call(3, 5, CallState.FAILED, age=7.9, duration=0.1, gap=7.0, error="collective_failed", timeout=6.0)
    return [*[failed(r) for r in SURVIVORS], late]


def test_a_rank_that_hangs_in_the_recovery_is_named_beside_the_late_one() -> None:
    calls = [*late_rank(), *[creation(r) for r in (0, 2, 3)]]
    found = judge(calls, [rank(r, 5, 4, idle=7.0) for r in ALL], [WORLD])
    assert named(found) == [(Category.MISSING_RANK, (1,)), (Category.STRAGGLER, (3,))]
    assert {finding.culprit_ranks: finding.is_apart for finding in causes(found)}[(1,)]


def test_a_rank_that_has_failed_just_now_may_still_come() -> None:
    calls = [*late_rank()[:1], failed(1, ago=0.5), *late_rank()[2:], *[creation(r) for r in (0, 2, 3)]]
    found = judge(calls, [rank(r, 5, 4, idle=0.5 if r == 1 else 7.0) for r in ALL], [WORLD])
    assert named(found) == [(Category.STRAGGLER, (3,))]


@pytest.mark.parametrize(
    ("end", "is_named"),
    [
        ({**RAISED, "exception": "ValueError: bad checkpoint"}, True),
        ({**RAISED, "exception": f"ValueError: bad checkpoint (from {CLOSED})"}, True),
        ({**RAISED, "exception": f"my.LoadError: bad checkpoint (from {CLOSED})"}, True),
        ({**RAISED, "exception": CLOSED}, False),
        ({**RAISED, "exception": "ValueError: no gradient", "exception_site": "train.py:30 step"}, False),
        ({"ending": Ending.RAISED, "exit_code": 1}, True),
        ({"ending": Ending.KILLED, "signal": 9}, True),
        ({"ending": Ending.KILLED, "signal": 15}, False),
    ],
    ids=[
        "raised",
        "while it handled it",
        "its own type",
        "raised again",
        "at its place",
        "exited",
        "killed",
        "stopped",
    ],
)
def test_who_ended_in_the_recovery_while_its_peers_went_on(end: dict[str, Any], is_named: bool) -> None:
    """Rank 3 was killed, and all others' calls failed at once. Rank 1 ended a second later."""
    gone = rank(3, 4, ending=Ending.KILLED, signal=9, idle=0.1, ended_for=8.0)
    ended = rank(1, 5, 4, idle=1.0, ended_for=4.0, **end)
    calls = [failed(r, took=0.1) for r in (0, 2)] + [failed(1, ago=1.0, took=0.1)]
    calls += [creation(r, SURVIVORS) for r in (0, 2)]
    found = named(judge(calls, [rank(0, 5, 4), ended, rank(2, 5, 4), gone], [WORLD]))
    assert ((Category.RANK_DEAD, (1,)) in found) is is_named
    assert (Category.RANK_DEAD, (3,)) in found


def test_a_rank_that_polls_for_messages_shows_not_that_the_others_catch_failures() -> None:
    """Rank 3 polls, which fails and fails. Rank 2 hangs; ranks 0 and 1 raise their time-outs as an error of theirs."""
    poll = Signature("recv", (), ((1,),), (), ("Float",), peer=2, tag=0)
    polls: dict[str, Any] = {"group": WORLD, "stream": "p2p"}
    calls = [failed(0, ago=0.5), failed(1, ago=0.5)]
    calls.append(call(3, 1, CallState.FAILED, poll, age=8.0, duration=6.0, error="timeout", **polls))
    calls.append(call(3, 2, CallState.IN_FLIGHT, poll, pair_index=1, age=1.0, **polls))
    ends = {**RAISED, "exception": "ValueError: no step (from RuntimeError: [gloo] Timed out waiting 6000ms)"}
    ranks = [*[rank(r, 5, 4, idle=0.5, **ends) for r in (0, 1)], rank(2, 4, idle=20.0), rank(3, 4, idle=1.0)]
    assert named(judge(calls, ranks, [WORLD])) == [(Category.MISSING_RANK, (2,))]


def test_what_ranks_waited_for_before_they_went_on_is_not_what_they_wait_for_now() -> None:
    """Rank 2 was late for its pair: all others timed out, each in another group. Rank 1 hangs in the recovery."""
    left, right = Group("p", "2", "pair", (2, 3)), Group("q", "3", "pair", (1, 2))
    late = call(2, 3, CallState.FAILED, group=left, age=7.9, duration=0.1, gap=7.0, error="collective_failed")
    calls = [failed(0), failed(1, group=right, number=4), failed(3, group=left, number=3), late]
    calls += [creation(r) for r in (0, 2, 3)]
    counts = {"p": (2, 2), "q": (3, 3)}
    ranks = [rank(r, 4 + (r == 0), 4, counts=counts, idle=7.0) for r in ALL]
    for r, group in ((1, "q"), (2, "p"), (3, "p")):
        ranks[r].progress[group].enqueued = 4 if group == "q" else 3
    found = named(judge(calls, ranks, [WORLD, left, right]))
    assert found == [(Category.MISSING_RANK, (1,)), (Category.STRAGGLER, (2,))]


def test_ranks_that_gave_up_and_became_another_run_are_not_missing() -> None:
    """Rank 3 hangs; rank 2 waited for it, and ranks 0 and 1 for rank 2. All but rank 3 have destroyed their groups."""
    pair = Group("p", "2", "pair", (2, 3))
    calls = [failed(0), failed(1), failed(2, group=pair, number=3)]
    ranks = [rank(r, 5, 4, ending=Ending.CLEAN, idle=0.5) for r in (0, 1)]
    ranks.append(rank(2, 4, counts={"p": (3, 2)}, ending=Ending.CLEAN, idle=0.5))
    for info in ranks:
        for progress in info.progress.values():
            progress.destroyed = True
    still = rank(3, 4, counts={"p": (2, 2)}, idle=20.0)
    assert named(judge(calls, [*ranks, still], [WORLD, pair])) == [(Category.MISSING_RANK, (3,))]


def test_a_rank_killed_before_others_are_stopped_in_their_recovery_is_named() -> None:
    """The stop came long after the failure: the killed rank is not one that did not react to it."""
    gone = rank(3, 4, ending=Ending.KILLED, signal=9, idle=4.0, ended_for=20.0)
    stopped = [rank(r, 5, 4, ending=Ending.KILLED, signal=15, idle=None, ended_for=0.0) for r in SURVIVORS]
    found = named(judge([failed(r, took=0.2, ago=20.0) for r in SURVIVORS], [*stopped, gone], [WORLD]))
    assert found == [(Category.RANK_DEAD, (3,))]


def test_a_rank_that_ended_by_a_later_failure_had_caught_the_first() -> None:
    """Rank 3 ended; the others went on at once, and rank 0 broke their next call."""
    later = Group("r", "1", "again", SURVIVORS)
    ends = {**RAISED, "exception": CLOSED, "exception_site": "train.py:70 step"}
    calls = [failed(r, ago=1.0, took=0.1) for r in SURVIVORS]
    calls += [
        call(r, 2, CallState.FAILED, LARGE if r == 0 else SUM, group=later, record=12, age=0.2, duration=0.1,
             error="collective_failed", site="train.py:70 step")
        for r in SURVIVORS
    ]  # fmt: skip
    ranks = [rank(r, 5, 4, counts={"r": (2, 1)}, idle=0.1, completed_age=0.3, **ends) for r in SURVIVORS]
    gone = rank(3, 4, idle=0.1, **{**RAISED, "exception": "ValueError: bad sample"})
    found = named(judge(calls, [*ranks, gone], [WORLD, later]))
    assert found == [(Category.RANK_DEAD, (3,)), (Category.SIZE_MISMATCH, (0,))]


def test_a_rank_whose_first_call_failed_may_be_missing_from_the_second() -> None:
    """Its backend shows when calls end: it does not wait unseen."""
    calls = [*[failed(r, number=1) for r in SURVIVORS], *[creation(r, SURVIVORS) for r in (0, 2)]]
    away = rank(3, idle=20.0, python_blocked=True)
    ranks: list[Rank] = [*[rank(r, 1, 0, idle=7.0) for r in SURVIVORS], away]
    found = named(judge(calls, ranks, [WORLD]))
    assert found == [(Category.MISSING_RANK, (1,)), (Category.RANK_STUCK, (3,))]


def test_a_call_that_failed_holds_up_no_later_one_of_its_group() -> None:
    again = [call(r, 6, record=8, age=7.0) for r in (0, 2, 3)]
    found = judge([*late_rank(), *again], [rank(r, 5 + (r != 1), 4, idle=7.0) for r in ALL], [WORLD])
    assert named(found) == [(Category.MISSING_RANK, (1,)), (Category.STRAGGLER, (3,))]


ENDINGS: dict[str, tuple[dict[str, Any], Category]] = {
    "hangs": ({}, Category.MISSING_RANK),
    "ended well": ({"ending": Ending.CLEAN}, Category.MISSING_RANK),
    "exited": ({"ending": Ending.RAISED, "exit_code": 3}, Category.RANK_DEAD),
    "raised": ({**RAISED, "exception": "ValueError: bad shard"}, Category.RANK_DEAD),
}


@pytest.mark.parametrize("has_raised", [False, True], ids=["wait", "raised"])
@pytest.mark.parametrize("has_failed", [False, True], ids=["first", "after a failure"])
@pytest.mark.parametrize("how", ENDINGS)
def test_a_rank_that_does_not_come_to_the_next_run_is_named(how: str, has_failed: bool, has_raised: bool) -> None:
    """All destroyed their groups; the others wait in init_process_group, or have given up there."""
    end, category = ENDINGS[how]
    again = Group("w1", "0", "default_pg", ALL)
    new = Signature("init_process_group", new_group=NewGroup("0", "default_pg", ALL))
    state = CallState.FAILED if has_raised else CallState.IN_FLIGHT
    taken = {"duration": 6.0, "error": "collective_failed"} if has_raised else {}
    fields: dict[str, Any] = {
        "group": again,
        "stream": "group",
        "record": 9,
        "age": 7.0,
        "timeout": 6.0,
        "site": "train.py:8",
        **taken,
    }
    calls = [call(r, 1, state, new, **fields) for r in SURVIVORS]
    calls += late_rank() if has_failed else []
    given_up = {**RAISED, "exception": f"RuntimeError: Gloo connectFullMesh failed with {CLOSED}"} if has_raised else {}
    infos = [rank(r, 5, 4 if has_failed else 5, idle=0.5, **given_up) for r in SURVIVORS]
    infos.append(rank(3, 5, 4 if has_failed else 5, idle=0.5 if end else 7.5, **end))
    for info in infos:
        info.progress["w"] = replace(info.progress["w"], destroyed=True)
    found = named(judge(calls, infos, [WORLD, again]))
    assert found == sorted([(category, (3,)), *([(Category.STRAGGLER, (3,))] if has_failed else [])])
