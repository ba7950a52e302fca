"""Ranks whose recorders tell less than others: they agree with everyone, and the others decide who is odd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.fingerprint import NO_REDUCE_OP, NO_ROOT, ONE_TENSOR, untold
from otel_fr.match import CallState, Category, Finding, Signature
from tests.support.evidence import BROADCAST, MAX, SUM, call, rank, verdict

SIZE = 6
ROOT = BROADCAST._replace(root=1)


def found_of(signatures: list[Signature]) -> list[Finding]:
    calls = [call(r, 1, CallState.COMPLETED, signature) for r, signature in enumerate(signatures)]
    return verdict(calls, [rank(r, 1, idle=0.1) for r in range(SIZE)], size=SIZE)


@pytest.mark.parametrize("usual", [SUM, ROOT])
@given(st.sets(st.integers(0, SIZE - 1)))
def test_ranks_that_tell_less_disagree_with_nobody(usual: Signature, plain: set[int]) -> None:
    assert found_of([usual._replace(reduce_op=None, root=None) if r in plain else usual for r in range(SIZE)]) == []


@pytest.mark.parametrize(
    ("usual", "odd", "category"),
    [
        (SUM, MAX, Category.REDUCE_OP_MISMATCH),
        (ROOT, ROOT._replace(root=2), Category.ROOT_MISMATCH),
    ],
)
@given(st.permutations(range(SIZE)), st.integers(0, 3))
def test_the_odd_one_is_that_of_those_who_tell(
    usual: Signature, odd: Signature, category: Category, ranks: list[int], plain: int
) -> None:
    signatures = [usual] * SIZE
    signatures[ranks[0]] = odd
    for r in ranks[SIZE - plain :]:
        signatures[r] = usual._replace(reduce_op=None, root=None)
    (found,) = found_of(signatures)
    assert (found.category, found.culprit_ranks) == (category, (ranks[0],))


def test_of_two_that_tell_none_is_known_to_be_right() -> None:
    (found,) = found_of([SUM, MAX, *[SUM._replace(reduce_op=None)] * 4])
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
