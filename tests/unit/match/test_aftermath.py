"""A mismatch after which all ranks went on explains nothing that happens later; one that holds ranks up does."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Progress, Rank, Signature
from tests.support.evidence import LARGE, MAX, SUM, blamed, call, rank, verdict
from tests.support.verdicts import causes

LAST = 9
"""The collective in which the others wait for the rank with the second fault."""


def job(odd: dict[tuple[int, int], Signature], away: Rank, last: int = LAST) -> list[Finding]:
    """All complete what comes before ``last``, where the others wait for ``away``.

    Args:
        odd: (rank, number) -> the call that it made there.
    """
    calls = [call(r, seq, CallState.COMPLETED, odd.get((r, seq), SUM)) for r in range(4) for seq in range(1, last)]
    waiting = [r for r in range(4) if r != away.rank]
    calls += [call(r, last, signature=odd.get((r, last), SUM)) for r in waiting]
    away.progress = {"w": Progress(last - 1, last - 1)}
    return verdict(calls, [away, *(rank(number, last) for number in waiting)], size=4)


def shown(findings: list[Finding]) -> list[tuple[Category, tuple[int, ...], int | None, tuple[int, ...]]]:
    return [(f.category, f.culprit_ranks, f.sequence_id, f.waiting_ranks) for f in causes(findings)]


AWAY = [
    (rank(1), Category.MISSING_RANK),
    (Rank(1, ending=Ending.KILLED, signal=9), Category.RANK_DEAD),
    (Rank(1, ending=Ending.RAISED, exception="KeyError: 'missing column'"), Category.RANK_DEAD),
    (rank(1, python_blocked=True), Category.RANK_STUCK),
]


@pytest.mark.parametrize(("away", "category"), AWAY)
def test_a_fault_long_after_a_mismatch_that_completed_is_a_cause_of_its_own(away: Rank, category: Category) -> None:
    found = job({(3, 4): MAX}, away)
    assert shown(found) == [
        (Category.REDUCE_OP_MISMATCH, (3,), 4, ()),
        (category, (1,), LAST, (0, 2, 3)),
    ]
    assert len(found) == 2


def test_the_rank_that_called_wrongly_may_have_a_second_fault() -> None:
    killed = Rank(3, ending=Ending.KILLED, signal=9)
    assert shown(job({(3, 4): MAX}, killed))[1:] == [(Category.RANK_DEAD, (3,), LAST, (0, 1, 2))]


def test_a_rank_that_ended_early_was_out_of_step_since_the_mismatch() -> None:
    found = job({(3, 4): MAX}, Rank(3, ending=Ending.CLEAN))
    assert shown(found) == [(Category.REDUCE_OP_MISMATCH, (3,), 4, ())]


@pytest.mark.parametrize(("differs", "is_second"), [(3, True), (1, False)])
def test_who_leaves_out_the_call_after_a_mismatch_of_another_rank_is_a_second_fault(
    differs: int, is_second: bool
) -> None:
    """A rank that called wrongly itself may be out of step: that is one fault."""
    found = job({(differs, LAST - 1): MAX}, rank(1))
    first = (Category.REDUCE_OP_MISMATCH, (differs,), LAST - 1, tuple({0, 2, 3} - {differs}))
    second = (Category.MISSING_RANK, (1,), LAST, (0, 2, 3))
    assert shown(found) == ([first, second] if is_second else [first])


def test_another_ranks_later_mismatch_is_a_second_fault() -> None:
    odd = {(3, 2): MAX, (1, 5): LARGE}
    found = job(odd, Rank(0, ending=Ending.KILLED, signal=9))
    assert shown(found) == [
        (Category.REDUCE_OP_MISMATCH, (3,), 2, ()),
        (Category.SIZE_MISMATCH, (1,), 5, ()),
        (Category.RANK_DEAD, (0,), LAST, (1, 2, 3)),
    ]


@pytest.mark.parametrize("step", [1, 2, 4])
def test_the_same_mismatch_in_every_step_is_one_fault_and_the_job_gets_over_it(step: int) -> None:
    odd = {(3, seq): MAX for seq in range(step, LAST, step)}
    assert shown(job(odd, rank(1))) == [
        (Category.REDUCE_OP_MISMATCH, (3,), step, ()),
        (Category.MISSING_RANK, (1,), LAST, (0, 2, 3)),
    ]


def test_ranks_that_hang_in_the_disagreeing_calls_wait_because_of_them() -> None:
    """Rank 2 completed its call and waits in the next one, for ranks that the mismatch holds up."""
    calls = [call(r, 4, signature=MAX if r == 3 else SUM) for r in (0, 1, 3)]
    calls += [call(2, 4, CallState.COMPLETED), call(2, 5)]
    found = verdict(calls, [*(rank(r, 4) for r in (0, 1, 3)), rank(2, 5)], size=4)
    assert shown(found) == [(Category.REDUCE_OP_MISMATCH, (3,), 4, (0, 1))]
    assert [(f.sequence_id, f.waiting_ranks) for f in found if f.caused_by] == [(5, (2,))]


def test_a_call_too_many_shifts_all_later_calls() -> None:
    """From number 4 on, rank 3 is one call behind; in number 9, which fits, it waits for rank 1."""
    kinds = [SUM, SUM, LARGE] * 3
    own = [SUM, *kinds]
    odd = {(rank, seq): (own if rank == 3 else kinds)[seq - 1] for rank in range(4) for seq in range(1, LAST)}
    odd |= {(rank, LAST): SUM for rank in range(4)}
    found = job(odd, rank(1))
    assert [(f.category, f.culprit_ranks) for f in causes(found)] == [(Category.SIZE_MISMATCH, (3,))]


def test_a_death_that_no_collective_shows_does_not_follow_from_a_mismatch_that_is_over() -> None:
    signatures = {(3, 4): MAX}
    calls = [
        call(r, seq, CallState.COMPLETED, signatures.get((r, seq), SUM)) for r in range(4) for seq in range(1, LAST)
    ]
    ranks = [rank(r, LAST - 1, idle=0.1) for r in range(4)]
    ranks[1].ending, ranks[1].signal = Ending.KILLED, 9
    assert blamed(calls, ranks, size=4) == [
        (Category.REDUCE_OP_MISMATCH, (3,)),
        (Category.RANK_DEAD, (1,)),
    ]


SHORT_LIST = Signature("all_gather", ((4,),), ((4,), (4,)), ("Float",), ("Float", "Float"))
"""The list of a call of three ranks has two tensors."""


def refused(number: int, **changed: Any) -> Call:
    fields = {"age": 5.0, "duration": 0.001, "error": "collective_failed", **changed}
    return call(number, 4, CallState.FAILED, SHORT_LIST, **fields)


def test_calls_that_the_backend_refuses_at_once_on_all_ranks_are_no_fault_while_these_live() -> None:
    later = [call(number, 5, CallState.COMPLETED, age=1.0) for number in range(3)]
    assert verdict([*map(refused, range(3)), *later], [rank(number, 5) for number in range(3)]) == []
    # They have failed, and it is not known yet whether the program catches that.
    assert verdict(map(refused, range(3)), [rank(number, 4) for number in range(3)]) == []


def test_a_refused_call_that_ends_its_ranks_is_a_mismatch() -> None:
    raised = [rank(number, 4, ending=Ending.RAISED, exception="ValueError: wrong length") for number in range(3)]
    assert blamed(map(refused, range(3)), raised) == [(Category.SIZE_MISMATCH, (0, 1, 2))]


def test_a_call_that_one_rank_alone_makes_wrongly_is_a_mismatch() -> None:
    right = SHORT_LIST._replace(output_sizes=((4,),) * 3, output_dtypes=("Float",) * 3)
    calls = [refused(1), *(call(number, 4, signature=right) for number in (0, 2))]
    assert blamed(calls, [rank(number, 4) for number in range(3)]) == [(Category.SIZE_MISMATCH, (1,))]
