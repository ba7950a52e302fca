"""What a summary says of a rank that others wait for: where it is, what it waits for, and what is not known."""

from __future__ import annotations

import dataclasses

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Progress, Rank, Signature
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
TP = Group("t", "3", "tp", (1, 2))
PP = Group("p", "4", "pp", (0, 1, 2))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")


def call(rank: int, group: Group, number: int, *, completed: bool = False) -> Call:
    return Call(
        rank=rank,
        group=group.id,
        stream="collective",
        sequence_id=number,
        record=number,
        signature=SUM,
        state=CallState.COMPLETED if completed else CallState.IN_FLIGHT,
        age=None if completed else 9.0,
    )


def message(rank: int, operation: str, peer: int | None, *, completed: bool = False, index: int = 0) -> Call:
    signature = Signature(operation, ((4,),), ((4,),), ("Float",), ("Float",), peer=peer, tag=0)
    return Call(
        rank=rank,
        group="p",
        stream="p2p",
        sequence_id=1,
        record=100,
        signature=signature._replace(any_source=peer is None),
        state=CallState.COMPLETED if completed else CallState.IN_FLIGHT,
        age=None if completed else 9.0,
        pair_index=index,
    )


def alive(rank: int, **progress: int) -> Rank:
    of = {group: Progress(count, count) for group, count in progress.items()}
    return Rank(rank, idle=9.0, progress=of, site="train.py:7 load")


def verdict(calls: list[Call], *ranks: Rank) -> Finding:
    (cause,) = causes(judge(calls, ranks, (WORLD, TP, PP), 3))
    return cause


def waiting(rank: int, group: Group, number: int) -> Rank:
    found = alive(rank, **{group.id: number})
    found.progress[group.id].completed = number - 1
    return found


def test_the_group_of_the_last_call_is_named_and_how_far_the_rank_is_behind() -> None:
    cause = verdict(
        [call(0, WORLD, 58), call(1, WORLD, 58), call(2, TP, 25, completed=True)],
        waiting(0, WORLD, 58),
        waiting(1, WORLD, 58),
        alive(2, w=57, t=25),
    )
    assert cause.culprit_ranks == (2,)
    assert "rank 2 did not join all_reduce number 58 of group default_pg (0)" in cause.text
    assert "; rank 2 is alive at train.py:7 load and in no call; " in cause.summary
    assert cause.details[:2] == (
        "it is 1 call behind in group default_pg (0)",
        "its last call was all_reduce number 25 of group tp (3)",
    )


@pytest.mark.parametrize(("last", "behind"), [(57, ""), (50, "it is 8 calls behind in group default_pg (0); ")])
def test_a_last_call_of_the_same_group_tells_by_itself_if_it_is_the_one_before(last: int, behind: str) -> None:
    cause = verdict(
        [call(0, WORLD, 58), call(2, WORLD, last, completed=True)],
        waiting(0, WORLD, 58),
        alive(1, w=58),
        alive(2, w=last),
    )
    assert "; ".join(cause.details).startswith(
        f"{behind}its last call was all_reduce number {last} of group default_pg (0)"
    )


def test_a_stage_that_is_stuck_in_its_code_is_missing_and_said_to_be_in_no_call() -> None:
    """Stages 0 and 2 of a pipeline wait for stage 1, which has received from stage 0 and computes."""
    cause = verdict(
        [
            message(0, "send", 1, index=1),
            message(2, "recv", 1),
            dataclasses.replace(message(1, "recv", 0, completed=True), record=99),
            dataclasses.replace(message(0, "send", 1, completed=True), record=99),
        ],
        alive(0),
        alive(1, p=0),
        alive(2),
    )
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (1,), "host")
    assert "rank 1 did not call the matching" in cause.text
    assert "rank 1 is alive at train.py:7 load and in no call; its last call was recv from rank 0" in cause.text


def test_a_rank_that_ended_well_without_its_half_of_a_message_left_it_out() -> None:
    ended = dataclasses.replace(alive(1), ending=Ending.CLEAN)
    cause = verdict([message(0, "send", 1)], alive(0), ended, alive(2))
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (1,))
    assert "rank 1 did not call the matching recv (or rank 0 made one send too many)" in cause.text


def test_a_rank_that_receives_from_any_source_is_not_said_to_be_blocked_on_the_host() -> None:
    cause = verdict(
        [message(0, "recv", None), call(1, WORLD, 2), call(2, WORLD, 2)],
        alive(0, w=1),
        waiting(1, WORLD, 2),
        waiting(2, WORLD, 2),
    )
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (0,), None)
    assert "it waits in recv from any source of group pp (4), and which rank should send is not known" in cause.text
    assert "host" not in cause.text
    assert "in no call" not in cause.text
