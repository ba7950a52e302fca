"""Errors that all ranks raise because one rank failed, as torch.distributed.checkpoint does."""

from __future__ import annotations

import pytest

from otel_fr.match import CallState, Category, Ending, Finding, Group
from tests.support.evidence import BROADCAST, call, rank, verdict, world

WORLD = world(4)
HALF = Group("h", "1", "half", (2, 3))


def text(*failed: int) -> str:
    """As torch 2.13 and 2.14 write it, with ranks of the group."""
    first = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys("
    return f"{first}{list(failed)})\nTraceback (most recent call last): (RANK {failed[0]})\nOSError: disk full\n"


def found_of(group: Group, *raised: int, failed: int) -> Finding:
    """The ranks ``raised`` ended by the error of that rank of the group; all others go on."""
    calls = [call(r, 9, CallState.COMPLETED, BROADCAST, group=group, age=0.1) for r in raised]
    ranks = [rank(r, counts={group.id: (9, 9)}, idle=0.1) for r in WORLD.ranks]
    for r in raised:
        ranks[r].ending, ranks[r].exception = Ending.RAISED, text(failed)
    (found,) = verdict(calls, ranks, HALF, size=4)
    assert found.category is Category.RANK_DEAD
    return found


def test_the_rank_that_the_error_names_is_the_culprit() -> None:
    assert found_of(WORLD, 0, 1, 2, 3, failed=1).culprit_ranks == (1,)


def test_it_is_named_by_its_rank_in_the_group() -> None:
    assert found_of(HALF, 2, 3, failed=1).culprit_ranks == (3,)


@pytest.mark.parametrize("raised", [(0,), (0, 2, 3)])
def test_ranks_that_ended_before_the_one_that_they_name_are_named(raised: tuple[int, ...]) -> None:
    assert found_of(WORLD, *raised, failed=1).culprit_ranks == raised


def test_the_incident_is_the_same_whichever_rank_is_seen_to_end_first() -> None:
    assert found_of(WORLD, 0, failed=1).key == found_of(WORLD, 0, 1, 2, 3, failed=1).key


def test_a_rank_that_the_group_does_not_have_is_ignored() -> None:
    assert found_of(HALF, 2, 3, failed=7).culprit_ranks == (2, 3)
