"""Ranks that end because otel-fr has told them that a peer has failed: a consequence, never a cause."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import CallState, Category, Ending, Rank
from otel_fr.match.texts.ranks import describe_ending
from tests.support.evidence import blamed, call, rank

PEER_FAILED = "otel_fr.fault_tolerance.peers.PeerFailedError: a call that waited for rank 1 was ended"
ENDS: dict[str, dict[str, Any]] = {
    "exit": {"exit_code": 75, "ended_for_peer": True},
    "exit with gloo's error": {"exit_code": 75, "ended_for_peer": True, "exception": "ValueError: no gradient"},
    "the error itself, later": {"exit_code": 1, "exception": PEER_FAILED},
}


def found_of(end: dict[str, Any], **of_rank_1: Any) -> list[tuple[Category, tuple[int, ...]]]:
    """Ranks 0 and 2 have caught the error of call 5, went on for long with others, and ended so."""
    done = [call(r, 4, CallState.COMPLETED, age=30.0) for r in range(3)]
    ended = [rank(r, 4, ending=Ending.RAISED, idle=5.0, **end) for r in (0, 2)]
    return blamed(done, [*ended, rank(1, 4, **{"idle": None, **of_rank_1})])


@pytest.mark.parametrize("end", ENDS)
def test_it_is_no_cause_alone(end: str) -> None:
    assert found_of(ENDS[end], idle=30.0) == []


def test_a_rank_that_exits_with_that_status_of_its_own_is_one() -> None:
    assert found_of({"exit_code": 75}, idle=30.0) == [(Category.RANK_DEAD, (0, 2))]


@pytest.mark.parametrize("end", ENDS)
def test_beside_the_rank_that_failed_only_that_one_is_named(end: str) -> None:
    assert found_of(ENDS[end], ending=Ending.KILLED, signal=9) == [(Category.RANK_DEAD, (1,))]


def test_its_ending_says_why() -> None:
    info = Rank(0, ending=Ending.RAISED, exit_code=75, ended_for_peer=True)
    assert describe_ending(info) == "exited with code 75, because a peer had failed"
