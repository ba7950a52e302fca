"""Large jobs: a few ranks of each group say where they wait, and the counts of the others show who is there too."""

from __future__ import annotations

from otel_fr.match import Category, Group, Rank
from tests.support.evidence import LONG, blamed, call, cause, rank, verdict

PAIR = Group("p", "1", "tp", (2, 3))


def counted(number: int, **counts: tuple[int, int]) -> Rank:
    """A rank that waits in a collective which it does not name."""
    return rank(number, counts={"w": (5, 4), **counts}, unlisted=LONG)


def test_ranks_whose_counts_show_that_they_wait_are_told_with_the_others() -> None:
    found = cause([call(0)], [rank(0, 5), rank(1, 4), counted(2), counted(3)], size=4)
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (1,), (0, 2, 3))


def test_one_that_has_completed_it_does_not_wait_in_it() -> None:
    found = cause([call(0)], [rank(0, 5), rank(1, 4), counted(2), rank(3, 6, 5, unlisted=LONG)], size=4)
    assert found.waiting_ranks == (0, 2)


def test_a_rank_that_waits_elsewhere_by_its_counts_is_a_victim() -> None:
    """Rank 2 waits for rank 3 in their own group, as a witness says; all others wait for rank 2."""
    ranks = [
        rank(0, 5),
        rank(1, 5),
        rank(2, counts={"w": (4, 4), "p": (7, 6)}, unlisted=LONG),
        rank(3, counts={"w": (4, 4), "p": (6, 6)}),
        rank(4, counts={"w": (4, 4), "p": (7, 6)}),
    ]
    tensor = Group("p", "1", "tp", (2, 3, 4))
    calls = [call(0), call(1), call(4, 7, group=tensor)]
    assert blamed(calls, ranks, tensor, size=5) == [(Category.MISSING_RANK, (3,))]


def test_a_rank_that_waits_where_nobody_has_told_is_not_accused() -> None:
    ranks = [rank(0, 5), rank(1, 5), rank(2, counts={"w": (4, 4), "p": (7, 6)}, unlisted=LONG), rank(3, 5)]
    calls = [call(0), call(1), call(3)]
    assert verdict(calls, ranks, PAIR, size=4) == []
    told = [*calls, call(2, 7, group=PAIR)]
    ranks[2] = rank(2, counts={"w": (4, 4), "p": (7, 6)})
    assert verdict(told, ranks, PAIR, size=4), "once it has said where"
