"""Ranks that end because otel-fr has told them that a peer has failed: a consequence, never a cause."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Progress, Rank, Signature
from otel_fr.match.endings import describe_ending
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")
PEER_FAILED = "otel_fr.fault_tolerance.peers.PeerFailedError: rank 1 failed, and a call that waited for it was ended"
ENDS: dict[str, dict[str, Any]] = {
    "exit": {"exit_code": 75, "ended_for_peer": True},
    "exit with gloo's error": {"exit_code": 75, "ended_for_peer": True, "exception": "ValueError: no gradient"},
    "the error itself, later": {"exit_code": 1, "exception": PEER_FAILED},
}


def verdict(end: dict[str, Any], **of_rank_1: Any) -> list[Finding]:
    """Ranks 0 and 2 have caught the error of call 5, went on for long with others, and ended so."""
    done = [Call(rank=r, group="w", stream="collective", sequence_id=4, record=4, signature=SUM, age=30.0,
                 state=CallState.COMPLETED) for r in (0, 1, 2)]  # fmt: skip
    ended = [Rank(r, ending=Ending.RAISED, idle=5.0, progress={"w": Progress(4, 4)}, **end) for r in (0, 2)]
    return causes(judge(done, [*ended, Rank(1, progress={"w": Progress(4, 4)}, **of_rank_1)], (WORLD,), 3))


@pytest.mark.parametrize("end", ENDS)
def test_it_is_no_cause_alone(end: str) -> None:
    assert verdict(ENDS[end], idle=30.0) == []


def test_a_rank_that_exits_with_that_status_of_its_own_is_one() -> None:
    (found,) = verdict({"exit_code": 75}, idle=30.0)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (0, 2))


@pytest.mark.parametrize("end", ENDS)
def test_beside_the_rank_that_failed_only_that_one_is_named(end: str) -> None:
    (found,) = verdict(ENDS[end], ending=Ending.KILLED, signal=9)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (1,))


def test_its_ending_says_why() -> None:
    info = Rank(0, ending=Ending.RAISED, exit_code=75, ended_for_peer=True)
    assert describe_ending(info) == "exited with code 75, because a peer had failed"
