"""Messages to or from the wrong rank, or with the wrong tag: one error of address, and a circle of ranks that wait."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Category, Finding, Group, Signature, diagnose
from tests.support.device_model import Machine, Op
from tests.support.evidence import BARRIER, LONG, SUM, call, message, rank, verdict, world
from tests.support.verdicts import causes


def barrier(rank: int) -> Call:
    return call(rank, 1, signature=BARRIER, record=200)


def causes_of(calls: list[Call]) -> list[Finding]:
    """The causes among three ranks that all wait."""
    in_barrier = {one.rank for one in calls if one.stream == "collective"}
    return causes(verdict(calls, [rank(r, int(r in in_barrier), 0) for r in range(3)]))


def half(operation: str, peer: int) -> Signature:
    return SUM._replace(operation=operation, reduce_op=None, peer=peer, tag=0)


@given(st.integers(0, 2**32), st.sampled_from(["send", "recv"]), st.booleans())
def test_one_wrong_peer_in_a_ring_is_named(seed: int, operation: str, ages: bool) -> None:
    rng = random.Random(seed)
    size = rng.randint(3, 8)
    group = world(size)
    steps, culprit = rng.randint(2, 6), rng.randrange(size)
    at = rng.randrange(1, steps)
    right = (culprit + 1) % size if operation == "send" else (culprit - 1) % size
    wrong = rng.choice([rank for rank in range(size) if rank not in (culprit, right)])
    programs: dict[int, list[Op]] = {rank: [] for rank in range(size)}
    for step in range(steps):
        for number, program in programs.items():
            for name, peer in (("send", (number + 1) % size), ("recv", (number - 1) % size)):
                if (number, step, name) == (culprit, at, operation):
                    peer = wrong
                program.append(Op(group, half(name, peer), peer))
    for program in programs.values():
        program.append(Op(group, BARRIER))
    machine = Machine(programs, depth=2)
    machine.run(rng)
    found = diagnose(machine.evidence(ages=ages))
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (culprit,)), cause.summary


def test_messages_that_would_not_fit_are_a_deadlock() -> None:
    """Neither call could take the other's place."""
    (cause,) = causes_of([message(0, "send", 1, length=3), message(1, "recv", 2, length=5), barrier(2)])
    assert cause.category is Category.DEADLOCK


def test_an_order_of_calls_that_blocks_is_a_deadlock_where_no_one_address_is_to_blame() -> None:
    (cause,) = causes_of([message(0, "send", 1), message(1, "recv", 2), message(2, "recv", 0)])
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1, 2))


def test_a_peer_of_many_messages_is_not_taken_for_the_wrong_one() -> None:
    """Rank 0 has sent to rank 2 before and never to rank 1: it was rank 2 that went on without receiving."""
    (cause,) = causes_of([message(0, "send", 2, pair_index=4), message(1, "recv", 0), barrier(2)])
    assert 0 not in cause.culprit_ranks or cause.category is Category.DEADLOCK


def test_two_messages_of_one_pair_are_no_error_of_address() -> None:
    """The ranks' reports may be of different moments."""
    (cause,) = causes_of([message(0, "send", 1), message(1, "recv", 0, pair_index=1), barrier(2)])
    assert cause.category is Category.DEADLOCK


@pytest.mark.parametrize(
    ("sent", "received", "named"),
    [
        ((1, 0), (0, 2), (0,)),  # (tag, earlier messages with it)
        ((0, 2), (1, 0), (1,)),
        ((0, 5), (1, 0), (1,)),
        ((1, 0), (0, 1), (0, 1)),  # once may be chance
        ((1, 0), (0, 0), (0, 1)),  # each message has a tag of its own
        ((1, 2), (0, 5), (0, 1)),  # both tags are in use
    ],
)
def test_the_wrong_tag_is_one_never_used_where_another_was(
    sent: tuple[int, int], received: tuple[int, int], named: tuple[int, ...]
) -> None:
    send = message(0, "send", 1, tag=sent[0], pair_index=sent[1])
    receive = message(1, "recv", 0, tag=received[0], pair_index=received[1])
    (cause,) = causes_of([send, receive, barrier(2)])
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, named)


@pytest.mark.parametrize(("before", "named"), [(2, (1,)), (1, (0,))])
def test_the_rank_that_waits_for_a_misdirected_message_need_not_be_in_the_circle(
    before: int, named: tuple[int, ...]
) -> None:
    """Rank 1, which sent to rank 2 in each step before, sends to rank 0, which waits for it elsewhere."""
    pair = Group("p", "p", "pair", (0, 1))
    calls = [message(1, "send", 0), message(2, "recv", 1, pair_index=before), call(0, 1, group="p", record=200)]
    ranks = [rank(0, 0, 0, counts={"p": (1, 0)}), rank(1, 0, 0, counts={"p": (0, 0)}), rank(2, 0, 0)]
    (cause,) = causes(verdict(calls, ranks, pair))
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, named)


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.UNKNOWN])
def test_a_receive_whose_message_has_arrived_blocks_no_rank(state: CallState) -> None:
    """gloo reports the end of a receive only to a thread that waits: rank 2 posted one early and is stuck in code."""
    found = causes_of(
        [
            message(2, "recv", 1, state=state),
            message(1, "send", 2, state=CallState.COMPLETED, age=LONG),
            barrier(0),
            barrier(1),
        ],
    )
    assert [(f.category, f.culprit_ranks) for f in found] == [(Category.MISSING_RANK, (2,))]
