"""Sizes that do not fit together: which rank, or which pair of ranks, and in how much time."""

from __future__ import annotations

import pytest

from otel_fr.match import CallState, Category, Finding, Group, Rank, Signature
from tests.support.evidence import FLOAT, call, judge, world


def judge_signatures(group: Group, signatures: dict[int, Signature]) -> list[Finding]:
    calls = [call(r, 1, CallState.COMPLETED, signature) for r, signature in signatures.items()]
    return judge(calls, map(Rank, group.ranks), [group])


def exchange(given: tuple[int, ...], taken: tuple[int, ...]) -> Signature:
    sizes = ((sum(given), 3),), ((sum(taken), 3),)
    return Signature("all_to_all_single", *sizes, FLOAT, FLOAT, input_splits=given, output_splits=taken)


@pytest.mark.parametrize("ranks", [4, 200])
def test_all_to_all_names_the_pair_that_disagrees(ranks: int) -> None:
    table = [[(i + 2 * j) % 5 + 1 for j in range(ranks)] for i in range(ranks)]
    signatures = {r: exchange(tuple(table[r]), tuple(table[other][r] for other in range(ranks))) for r in range(ranks)}
    assert judge_signatures(world(ranks), signatures) == []
    wrong = list(table[2])
    wrong[1] += 1
    signatures[2] = exchange(tuple(wrong), tuple(table[other][2] for other in range(ranks)))
    (finding,) = judge_signatures(world(ranks), signatures)
    assert (finding.category, finding.culprit_ranks) == (Category.SIZE_MISMATCH, (1, 2))
    assert finding.field == "sizes sent from rank 2 to rank 1"
    assert finding.values == {1: f"{3 * table[2][1]} elements", 2: f"{3 * wrong[1]} elements"}


def test_sizes_beyond_64_bits_of_a_damaged_file_do_no_harm() -> None:
    large = ((1 << 40, 1 << 40),) * 9
    signatures = {r: Signature("all_to_all", large, large, FLOAT * 9, FLOAT * 9) for r in range(9)}
    signatures[0] = Signature("all_to_all", large, ((2,), *large[1:]), FLOAT * 9, FLOAT * 9)
    (finding,) = judge_signatures(world(9), signatures)
    assert (finding.category, finding.field) == (Category.SIZE_MISMATCH, "sizes")


@pytest.mark.parametrize("ranks", [4, 200])
def test_a_rank_in_every_disagreement_of_an_all_to_all_is_the_odd_one(ranks: int) -> None:
    signatures = {r: exchange((2,) * ranks, (2,) * ranks) for r in range(ranks)}
    signatures[3] = exchange((5,) * ranks, (2,) * (ranks - 1) + (5,))
    (finding,) = judge_signatures(world(ranks), signatures)
    assert finding.culprit_ranks == (3,)


@pytest.mark.parametrize("odd", [0, 5])
def test_one_of_many_all_gather_pieces_that_its_lists_do_not_expect(odd: int) -> None:
    lists = tuple((n + 1,) for n in range(200))
    signatures = {r: Signature("all_gather", ((r + 1,),), lists, FLOAT, FLOAT * 200) for r in range(200)}
    assert judge_signatures(world(200), signatures) == []
    signatures[odd] = signatures[odd]._replace(input_sizes=((77,),))
    (finding,) = judge_signatures(world(200), signatures)
    assert (finding.category, finding.culprit_ranks, finding.field) == (Category.SIZE_MISMATCH, (odd,), "input_sizes")


def test_gather_pieces_that_the_root_does_not_expect() -> None:
    root = Signature("gather", ((4,),), ((4,),) * 4, FLOAT, FLOAT * 4, root=2)
    leaf = Signature("gather", ((4,),), (), FLOAT, (), root=2)
    assert judge_signatures(world(4), {0: leaf, 1: leaf, 2: root, 3: leaf}) == []
    (finding,) = judge_signatures(world(4), {0: leaf, 1: leaf._replace(input_sizes=((3,),)), 2: root, 3: leaf})
    assert finding.culprit_ranks == (1,)
    (finding,) = judge_signatures(world(4), {0: leaf, 1: leaf, 2: root._replace(output_sizes=((5,),) * 4), 3: leaf})
    assert finding.culprit_ranks == (2,), "the root's list fits none of the others"


@pytest.mark.parametrize(
    ("signature", "value"),
    [
        (Signature("all_gather_into_tensor", ((4, 4),), ((12,),), FLOAT, FLOAT), "12 elements, should be 64 elements"),
        (Signature("reduce_scatter_tensor", ((12,),), ((4,),), FLOAT, FLOAT, "sum"), "12 elements, should be 16"),
        (Signature("all_reduce", ((4,),), ((5,),), FLOAT, FLOAT, "sum"), "[[5]], should be [[4]]"),
        (Signature("all_gather", ((4,),), ((4,),) * 3, FLOAT, FLOAT * 3), "3 tensors, should be 4 tensors"),
    ],
)
def test_outputs_that_do_not_follow_from_the_inputs_are_wrong_on_every_rank(signature: Signature, value: str) -> None:
    (finding,) = judge_signatures(world(4), dict.fromkeys(range(4), signature))
    assert (finding.category, finding.culprit_ranks) == (Category.SIZE_MISMATCH, (0, 1, 2, 3))
    assert finding.values[0].startswith(value)


def test_flattened_lists_are_right_if_what_all_send_is_what_all_take() -> None:
    """gloo and some hooks record one tensor for a list; uneven pieces are legal and cannot be seen in it."""
    gathered = Signature("all_gather", ((4,),), ((13,),), FLOAT, FLOAT)
    uneven = {0: gathered, 1: gathered, 2: gathered._replace(input_sizes=((5,),))}
    assert judge_signatures(world(3), uneven) == []
    (finding,) = judge_signatures(world(3), {**uneven, 1: gathered._replace(input_sizes=((6,),))})
    assert finding.category is Category.SIZE_MISMATCH
    assert finding.values[0].startswith("15 elements sent and 13 received")
    assert judge_signatures(world(4), uneven) == [], "a member whose call is not there may have brought the rest"


@pytest.mark.parametrize("turned", [False, True], ids=["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("piece", "whole", "members", "present", "is_right"),
    [
        (8, 16, 2, 2, True),
        (8, 17, 2, 2, False),
        (8, 15, 2, 2, False),
        (8, 17, 2, 1, True),  # the other member's piece may be larger
        (8, 7, 2, 1, False),  # less than its own piece
        (0, 0, 3, 3, True),
        (8, 8, 1, 1, True),
        (8, 17, 0, 2, True),  # who the members are is not known
    ],
)
def test_a_flat_tensor_that_all_members_record_alike(
    piece: int, whole: int, members: int, present: int, is_right: bool, turned: bool
) -> None:
    ins, outs = (whole, piece) if turned else (piece, whole)
    name = "reduce_scatter" if turned else "all_gather"
    signature = Signature(name, ((ins,),), ((outs,),), FLOAT, FLOAT)
    found = judge_signatures(world(members), dict.fromkeys(range(present), signature))
    mismatches = [finding.category for finding in found if finding.field is not None]
    assert mismatches == ([] if is_right else [Category.SIZE_MISMATCH])


def test_splits_that_no_rank_recorded_are_compared_as_a_whole() -> None:
    blind = Signature("all_to_all_single", ((6,),), ((6,),), FLOAT, FLOAT, input_splits=(), output_splits=())
    legal = {0: blind._replace(output_sizes=((4,),)), 1: blind._replace(output_sizes=((8,),))}
    assert judge_signatures(world(2), legal) == []
    (finding,) = judge_signatures(world(2), {**legal, 1: blind._replace(output_sizes=((9,),))})
    assert (finding.category, finding.culprit_ranks) == (Category.SIZE_MISMATCH, (0, 1))
