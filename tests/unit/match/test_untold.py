"""Ranks whose recorders tell less than others: they agree with everyone, and the others decide who is odd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.fingerprint import NO_REDUCE_OP, NO_ROOT, ONE_TENSOR, untold
from otel_fr.match import Call, CallState, Category, Finding, Group, Progress, Rank, Signature
from tests.support.evidence import judge

SIZE = 6
WORLD = Group("w", "0", "default_pg", tuple(range(SIZE)))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")
ROOT = Signature("broadcast", ((4,),), ((4,),), ("Float",), ("Float",), root=1)


def verdict(signatures: list[Signature]) -> list[Finding]:
    calls = [
        Call(
            rank=rank, group="w", stream="collective", sequence_id=1, record=0, signature=signature,
            state=CallState.COMPLETED,
        )
        for rank, signature in enumerate(signatures)
    ]  # fmt: skip
    return judge(calls, [Rank(rank, idle=0.1, progress={"w": Progress(1, 1)}) for rank in range(SIZE)], [WORLD], SIZE)


@pytest.mark.parametrize("usual", [SUM, ROOT])
@given(st.sets(st.integers(0, SIZE - 1)))
def test_ranks_that_tell_less_disagree_with_nobody(usual: Signature, plain: set[int]) -> None:
    assert verdict([usual._replace(reduce_op=None, root=None) if r in plain else usual for r in range(SIZE)]) == []


@pytest.mark.parametrize(
    ("usual", "odd", "category"),
    [
        (SUM, SUM._replace(reduce_op="max"), Category.REDUCE_OP_MISMATCH),
        (ROOT, ROOT._replace(root=2), Category.ROOT_MISMATCH),
    ],
)
@given(st.permutations(range(SIZE)), st.integers(0, 3))
def test_the_odd_one_is_that_of_those_who_tell(
    usual: Signature, odd: Signature, category: Category, ranks: list[int], plain: int
) -> None:
    signatures = [usual] * SIZE
    signatures[ranks[0]] = odd
    for rank in ranks[SIZE - plain :]:
        signatures[rank] = usual._replace(reduce_op=None, root=None)
    (found,) = verdict(signatures)
    assert (found.category, found.culprit_ranks) == (category, (ranks[0],))


def test_of_two_that_tell_none_is_known_to_be_right() -> None:
    (found,) = verdict([SUM, SUM._replace(reduce_op="max"), *[SUM._replace(reduce_op=None)] * 4])
    assert found.culprit_ranks == (0, 1)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (SUM, 0),
        (ROOT, 0),
        (Signature("barrier"), 0),
        (SUM._replace(reduce_op=None), NO_REDUCE_OP),
        (ROOT._replace(root=None), NO_ROOT),
        (SUM._replace(operation="reduce", reduce_op=None), NO_REDUCE_OP | NO_ROOT),
        (Signature("all_gather", ((4,),), ((4,), (4,)), ("Float",), ("Float",)), 0),
        (Signature("all_gather", ((4,),), ((8,),), ("Float",), ("Float",)), ONE_TENSOR),
        (Signature("reduce_scatter", ((8,),), ((4,),), ("Float",), ("Float",), "sum"), ONE_TENSOR),
        (Signature("all_gather_into_tensor", ((4,),), ((8,),), ("Float",), ("Float",)), 0),
    ],
)
def test_what_a_recorder_did_not_tell(signature: Signature, expected: int) -> None:
    assert untold(signature) == expected
