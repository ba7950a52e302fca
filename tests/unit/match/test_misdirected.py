"""Messages to or from the wrong rank, or with the wrong tag: one error of address, and a circle of ranks that wait."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Category, Finding, Group, Progress, Rank, Signature, diagnose
from tests.support.device_model import Machine, Op
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
FLOATS = ("Float",)


def message(operation: str, peer: int, tag: int = 0, length: int = 4) -> Signature:
    return Signature(operation, ((length,),), ((length,),), FLOATS, FLOATS, peer=peer, tag=tag)


def half(rank: int, operation: str, peer: int, seq: int = 1, **more: Any) -> Call:
    """A send or receive that is in flight for long."""
    signature = message(operation, peer, **{k: more.pop(k) for k in ("tag", "length") if k in more})
    more.setdefault("state", CallState.IN_FLIGHT)
    return Call(rank=rank, group="w", stream="p2p", sequence_id=seq, record=seq, signature=signature, age=9.0, **more)


def barrier(*ranks: int) -> list[Call]:
    return [
        Call(
            rank=r,
            group="w",
            stream="collective",
            sequence_id=1,
            record=9,
            signature=Signature("barrier"),
            state=CallState.IN_FLIGHT,
            age=9.0,
        )
        for r in ranks
    ]


def causes_of(calls: list[Call]) -> list[Finding]:
    """The causes among three ranks that all wait."""
    in_barrier = {call.rank for call in calls if call.stream == "collective"}
    ranks = {r: Rank(r, idle=9.0, progress={"w": Progress(int(r in in_barrier), 0)}) for r in WORLD.ranks}
    return causes(judge(calls, ranks.values(), [WORLD], 3))


@given(st.integers(0, 2**32), st.sampled_from(["send", "recv"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_one_wrong_peer_in_a_ring_is_named(seed: int, operation: str, ages: bool) -> None:
    rng = random.Random(seed)
    size = rng.randint(3, 8)
    group = Group("g0", "0", "default_pg", tuple(range(size)))
    steps, culprit = rng.randint(2, 6), rng.randrange(size)
    at = rng.randrange(1, steps)
    right = (culprit + 1) % size if operation == "send" else (culprit - 1) % size
    wrong = rng.choice([rank for rank in range(size) if rank not in (culprit, right)])
    programs: dict[int, list[Op]] = {rank: [] for rank in range(size)}
    for step in range(steps):
        for rank, program in programs.items():
            for name, peer in (("send", (rank + 1) % size), ("recv", (rank - 1) % size)):
                if (rank, step, name) == (culprit, at, operation):
                    peer = wrong
                program.append(Op(group, message(name, peer), peer))
    for program in programs.values():
        program.append(Op(group, Signature("barrier")))
    machine = Machine(programs, depth=2)
    assert machine.run(rng)
    found = diagnose(machine.evidence(rng, still=True, ages=ages))
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (culprit,)), cause.summary
    assert f"rank {culprit} {'sends to' if operation == 'send' else 'receives from'} the wrong rank" in cause.summary


def test_a_send_to_the_wrong_rank_is_reported_with_the_receive_that_it_would_fit() -> None:
    (cause,) = causes_of([half(0, "send", 2), half(1, "recv", 0), *barrier(2)])
    assert (cause.category, cause.culprit_ranks, cause.p2p) == (Category.UNMATCHED_P2P, (0,), (0, 2, 0, 0))
    assert "rank 0 sends to the wrong rank (or rank 2 left out its recv)" in cause.summary
    assert "rank 1 waits in recv number 1 from rank 0 to rank 1" in cause.summary


def test_a_receive_from_the_wrong_rank_is_reported_with_the_send_that_it_would_fit() -> None:
    (cause,) = causes_of([half(0, "send", 1), half(1, "recv", 2), *barrier(2)])
    assert (cause.category, cause.culprit_ranks, cause.p2p) == (Category.UNMATCHED_P2P, (1,), (2, 1, 0, 0))


def test_tags_that_differ_name_both_ends() -> None:
    (cause,) = causes_of([half(0, "send", 1, tag=1), half(1, "recv", 0, tag=2), *barrier(2)])
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (0, 1))
    assert "tags differ" in cause.summary


def test_messages_that_would_not_fit_are_a_deadlock() -> None:
    """Neither call could take the other's place."""
    (cause,) = causes_of([half(0, "send", 1, length=3), half(1, "recv", 2, length=5), *barrier(2)])
    assert cause.category is Category.DEADLOCK


def test_an_order_of_calls_that_blocks_is_a_deadlock_where_no_one_address_is_to_blame() -> None:
    (cause,) = causes_of([half(0, "send", 1), half(1, "recv", 2), half(2, "recv", 0)])
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1, 2))


def test_a_cycle_of_many_ranks_has_a_short_summary() -> None:
    size = 100
    world = Group("w", "0", "default_pg", tuple(range(size)))
    calls = [half(rank, "recv", (rank - 1) % size) for rank in range(size)]
    ranks = {rank: Rank(rank, idle=9.0) for rank in range(size)}
    (cause,) = judge(calls, ranks.values(), [world], size)[:1]
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, world.ranks)
    assert cause.summary.endswith("and so on back to rank 0 (100 ranks in all)")
    assert len(cause.summary) < 1000


def test_a_peer_of_many_messages_is_not_taken_for_the_wrong_one() -> None:
    """Rank 0 has sent to rank 2 before and never to rank 1: it was rank 2 that went on without receiving."""
    (cause,) = causes_of([half(0, "send", 2, pair_index=4), half(1, "recv", 0), *barrier(2)])
    assert 0 not in cause.culprit_ranks or cause.category is Category.DEADLOCK


def test_two_messages_of_one_pair_are_no_error_of_address() -> None:
    """The ranks' reports may be of different moments."""
    (cause,) = causes_of([half(0, "send", 1), half(1, "recv", 0, pair_index=1), *barrier(2)])
    assert cause.category is Category.DEADLOCK


def test_a_send_to_a_rank_without_any_evidence_is_reported() -> None:
    (cause,) = judge([half(0, "send", 1)], [Rank(0, idle=9.0)], [WORLD])
    assert (cause.category, cause.culprit_ranks) == (Category.UNMATCHED_P2P, (1,))
    assert "it is not known whether rank 1 called the matching recv" in cause.summary


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.UNKNOWN])
def test_a_receive_whose_message_has_arrived_blocks_no_rank(state: CallState) -> None:
    """gloo reports the end of a receive only to a thread that waits: rank 2 posted one early and is stuck in code."""
    found = causes_of(
        [half(2, "recv", 1, state=state), half(1, "send", 2, state=CallState.COMPLETED), *barrier(0, 1)],
    )
    assert [(f.category, f.culprit_ranks) for f in found] == [(Category.MISSING_RANK, (2,))]
