"""The first decision in which a culprit differed from its peers: evidence beside a fault, never one by itself."""

from __future__ import annotations

import zlib

import pytest

from otel_fr.match import Decision, Finding, Rank
from otel_fr.match.decisions import first_divergence, texts
from tests.support.verdicts import causes, judge
from tests.unit.match.test_whereabouts import WORLD, alive, call, waiting


def decided(name: str, *runs: tuple[object, int, int], steps: bool = True) -> list[Decision]:
    """Decisions of one name: (value, first, last); the n-th is made in step n - 1."""
    return [
        Decision(name, str(value), zlib.crc32(str(value).encode()), first, last, first - 1 if steps else None)
        for value, first, last in runs
    ]


STEADY = decided("skip_batch", (False, 1, 820))
ASTRAY = decided("skip_batch", (False, 1, 812), (True, 813, 813))


def text_of(own: list[Decision], *others: list[Decision]) -> str:
    ranks = {number: Rank(number, decisions=tuple(of)) for number, of in enumerate([own, *others])}
    return "; ".join(texts([0], range(len(ranks)), ranks))


def test_the_first_difference_is_named() -> None:
    said = "the first decision in which rank 0 differed: skip_batch=True at step 812; the others False"
    assert text_of(ASTRAY, STEADY, STEADY) == said
    assert text_of(ASTRAY, STEADY).endswith("at step 812; rank 1 False")


def test_the_earliest_of_several_is_named() -> None:
    lr = decided("lr", (0.1, 1, 700), (0.05, 701, 813))
    own = [*decided("skip_batch", (False, 1, 812)), lr[0], lr[1], ASTRAY[1]]
    peer = [*STEADY, *decided("lr", (0.1, 1, 820))]
    assert "lr=0.05 at step 700; the others 0.1" in text_of(own, peer, peer)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (STEADY, [STEADY, STEADY]),
        (STEADY, [[], []]),
        ([], [STEADY]),
        # Always different, as which rank writes the log is.
        (decided("writes_log", (True, 1, 9)), [decided("writes_log", (False, 1, 9))] * 2),
        # The peers differ among themselves, as sizes of batches do.
        (
            decided("size", (8, 1, 4), (7, 5, 9)),
            [decided("size", (8, 1, 4), (6, 5, 9)), decided("size", (8, 1, 4), (5, 5, 9))],
        ),
        # Only the newest are kept: whether they had agreed before is not known.
        (decided("scale", (2, 50, 60)), [decided("scale", (1, 50, 60))]),
        # The peers have not come that far.
        (decided("skip", (False, 1, 9), (True, 10, 10)), [decided("skip", (False, 1, 9))]),
        # The same changes, one after the other.
        (decided("scale", (2, 1, 50), (1, 51, 60)), [decided("scale", (2, 1, 50), (1, 51, 90))]),
    ],
)
def test_what_tells_nothing_is_not_said(own: list[Decision], others: list[list[Decision]]) -> None:
    assert first_divergence(own, others) is None
    assert text_of(own, *others) == ""


def test_a_rank_that_did_not_change_with_the_others() -> None:
    """The step is not known in which it decided as before."""
    own, peer = decided("phase", ("train", 1, 9)), decided("phase", ("train", 1, 8), ("eval", 9, 9))
    assert text_of(own, peer, peer).endswith("differed: phase=train; the others eval")


def judged(*decisions: list[Decision]) -> Finding:
    """Rank 1 has not joined the fifth collective, in which the others wait."""
    ranks = [waiting(0, WORLD, 5), alive(1, w=4), waiting(2, WORLD, 5)]
    for rank in ranks:
        rank.decisions = tuple(decisions[rank.rank])
    (finding,) = causes(judge([call(rank, WORLD, 5) for rank in (0, 2)], ranks, [WORLD], 3))
    return finding


def test_the_culprits_finding_has_it_and_nothing_else_changes() -> None:
    found, plain = judged(STEADY, ASTRAY, STEADY), judged([], [], [])
    assert found.culprit_ranks == (1,)
    text = "the first decision in which rank 1 differed: skip_batch=True at step 812; the others False"
    assert found.details == (*plain.details, text)
    assert (plain.summary, plain.culprit_ranks, plain.key) == (found.summary, found.culprit_ranks, found.key)


def test_differences_of_healthy_ranks_are_no_fault() -> None:
    ranks = [alive(rank, w=5) for rank in range(3)]
    for rank in ranks:
        rank.decisions = tuple(ASTRAY if rank.rank == 1 else STEADY)
    assert judge([], ranks, [WORLD], 3) == []
