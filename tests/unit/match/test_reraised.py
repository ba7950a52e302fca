"""Errors that all ranks raise because of one rank, as torch.distributed.checkpoint and DDP's constructor do."""

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
    return found_after(group, dict.fromkeys(raised, text(failed)))


def found_after(group: Group, raised: dict[int, str]) -> Finding:
    """Ranks ended by these exceptions after a collective of the group."""
    calls = [call(r, 9, CallState.COMPLETED, BROADCAST, group=group, age=0.1) for r in raised]
    ranks = [rank(r, counts={group.id: (9, 9)}, idle=0.1) for r in WORLD.ranks]
    for r, exception in raised.items():
        ranks[r].ending, ranks[r].exception = Ending.RAISED, exception
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


def sizes(*counts: int) -> list[str]:
    """What DDP says of models with so many parameters: each rank names the first that differs from it."""
    first = "RuntimeError: DDP expects same model across all ranks, but Rank"
    others = [next(o for o, count in enumerate(counts) if count != own) for own in counts]
    return [
        f"{first} {r} has {own} params, while rank {others[r]} has inconsistent {counts[others[r]]} params."
        for r, own in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("counts", "named"),
    [((4, 6, 4, 4), (1,)), ((6, 4, 4, 4), (0,)), ((4, 4, 6, 6), (0, 1, 2, 3)), ((4, 4, 5, 6), (0, 1, 2, 3))],
)
def test_the_rank_whose_model_is_another_one_is_the_culprit(counts: tuple[int, ...], named: tuple[int, ...]) -> None:
    assert found_after(WORLD, dict(enumerate(sizes(*counts)))).culprit_ranks == named


def test_both_ranks_of_a_group_of_two_are_named() -> None:
    assert found_after(HALF, dict(zip(HALF.ranks, sizes(4, 6), strict=True))).culprit_ranks == (2, 3)


@pytest.mark.parametrize(
    "exception",
    [
        sizes(4, 4, 4, 4, 4, 6)[5],
        sizes(4, 6)[0].replace("Rank 0", f"Rank {'0' * 5000}"),
        text(0).replace("[0]", "[, ]"),
        text(0).replace("[0]", f"[{'0' * 5000}]"),
    ],
    ids=["of ranks of a larger group", "a long number", "no number", "a long number of a checkpoint"],
)
def test_an_error_that_names_no_rank_of_the_group_leaves_a_verdict(exception: str) -> None:
    """A rank may have called another group since DDP's constructor failed."""
    assert found_after(HALF, {2: exception.replace("rank 0 has", "rank 4 has")}).culprit_ranks == (2,)
