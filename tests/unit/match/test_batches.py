"""Messages whose devices run behind their hosts: batches end together, and later sends take the place of lost ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_fr.match import Call, CallState, Category, Finding
from tests.support.evidence import call, cause, message, rank, verdict
from tests.support.verdicts import causes

DONE = CallState.COMPLETED
RING = 4


def hop(one: int, number: int, index: int, *, to: int | None = None, age: float | None = 9.0) -> list[Call]:
    """A rank's send and receive of one step around the ring, which are a batch; ``to``: the wrong rank."""
    sent, record = 0 if to is not None else index, 2 * number
    return [
        message(one, "send", (one + 1) % RING if to is None else to, number, record=record, age=age, pair_index=sent),
        message(one, "recv", (one - 1) % RING, number, record=record + 1, age=age, pair_index=number),
    ]


def completed(calls: list[Call]) -> list[Call]:
    return [replace(one, state=DONE) for one in calls]


def ring_with_a_wrong_peer() -> list[Finding]:
    """In hop 1 rank 2 sends to rank 0; its hosts go on, so its send of hop 2 takes the place of the lost one."""
    calls = [
        *completed(hop(0, 1, 1)), *hop(0, 2, 2),
        *completed(hop(1, 1, 1)), *hop(1, 2, 2),
        *hop(2, 1, 1, to=0), *hop(2, 2, 1, age=0.0),
        *hop(3, 1, 1), *hop(3, 2, 2, age=0.0),
    ]  # fmt: skip
    return verdict(calls, [rank(r, 0) for r in range(RING)], size=RING)


def test_a_wrong_peer_is_named_where_hosts_run_ahead() -> None:
    (found,) = causes(ring_with_a_wrong_peer())
    assert (found.category, found.culprit_ranks, found.p2p) == (Category.UNMATCHED_P2P, (2,), (2, 0, 0, 0))


@pytest.mark.parametrize("is_missing", [True, False])
def test_half_of_a_batch_that_the_peer_completed_is_no_stuck_device(is_missing: bool) -> None:
    """Rank 1 has sent to rank 0, which has it, and waits in the same batch for a message of rank 2."""
    calls = [message(0, "recv", 1, state=DONE), message(1, "send", 0, record=101), message(1, "recv", 2, record=102)]
    if not is_missing:
        calls.append(message(2, "send", 1, state=DONE))
    found = cause(calls, [rank(0, 0, idle=9.0), rank(1, 0), rank(2, 0, idle=9.0)])
    assert (found.category, found.culprit_ranks) == (
        (Category.MISSING_RANK, (2,)) if is_missing else (Category.RANK_STUCK, (1,))
    )


def test_a_receive_before_a_collective_that_all_joined_may_have_been_posted_early() -> None:
    """Its send may come after the collective: nothing shows that the device of rank 2 is in it."""
    calls = [*(call(r, 9, record=200) for r in range(4)), message(2, "recv", 1, record=101)]
    found = cause(calls, [rank(r, 9) for r in range(4)], size=4)
    assert (found.category, found.culprit_ranks) == (Category.STALLED_COLLECTIVE, ())
