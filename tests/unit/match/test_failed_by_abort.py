"""nccl2's watchdog lets calls fail, and then ends the process: they are still what its rank waited in."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Rank
from tests.support.evidence import blamed, call, rank

DONE = 26
"""The last call that the devices of ranks 0 and 2 have completed."""


def failed(number: int, of: int, seconds: float = 12.4, **more: Any) -> Call:
    """It fails 0.1 s before the end of its rank. The limit that is known is not the one that held."""
    more = {"age": seconds + 0.1, "duration": seconds, "error": "collective_failed", "timeout": 300.0, **more}
    return call(number, of, CallState.FAILED, **more)


def aborted(number: int, reached: int, done: int, **more: Any) -> Rank:
    return rank(number, reached, done, ending=Ending.KILLED, signal=SIGABRT, idle=0.1, **more)


PEERS = [aborted(number, DONE + 1, DONE) for number in (0, 2)]
WAITS = [failed(number, DONE + 1) for number in (0, 2)]


@pytest.mark.parametrize(
    ("own", "end"),
    [
        (failed(1, DONE), aborted(1, DONE, DONE - 1)),
        (call(1, DONE, age=12.7), rank(1, DONE, DONE - 1, ending=Ending.KILLED, signal=15, idle=12.7)),
        (call(1, DONE, age=42.0), rank(1, DONE, DONE - 1, ending=Ending.KILLED, signal=SIGKILL, python_blocked=True)),
    ],
    ids=["aborted", "ended by its launcher", "stopped, and killed by its launcher"],
)
def test_the_rank_whose_device_does_not_complete_what_its_peers_completed_is_named(own: Call, end: Rank) -> None:
    assert blamed([own, *WAITS], [PEERS[0], end, PEERS[1]]) == [(Category.RANK_STUCK, (1,))]


def test_a_device_that_has_not_begun_the_call_is_named() -> None:
    calls = [failed(number, DONE + 1, queued=number == 1) for number in range(3)]
    assert blamed(calls, [aborted(number, DONE + 1, DONE) for number in range(3)]) == [(Category.RANK_STUCK, (1,))]


def test_a_rank_that_is_missing_is_named() -> None:
    missing = rank(1, DONE, ending=Ending.KILLED, signal=15, idle=12.5)
    assert blamed(WAITS, [PEERS[0], missing, PEERS[1]]) == [(Category.MISSING_RANK, (1,))]


def test_a_call_that_failed_long_before_the_end_is_none_that_the_rank_waited_in() -> None:
    """Rank 0 aborts for a reason of its own, in no call."""
    before = failed(0, DONE + 1, seconds=0.4, age=60.4)
    end = rank(0, DONE + 1, DONE, ending=Ending.KILLED, signal=SIGABRT, idle=60.0)
    assert blamed([before], [end, rank(1, DONE), rank(2, DONE)]) == [(Category.RANK_DEAD, (0,))]
