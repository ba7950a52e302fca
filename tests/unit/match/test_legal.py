"""The table of legal differences: what may differ between ranks, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from otel_fr.match import Category, Signature, compare
from tests.support.evidence import WORLD, call

Shapes = Sequence[Sequence[int]]


def sig(operation: str, sent: Shapes = (), got: Shapes = (), dtype: str = "Float", **more: Any) -> Signature:
    inputs, outputs = tuple(map(tuple, sent)), tuple(map(tuple, got))
    return Signature(operation, inputs, outputs, (dtype,) * bool(inputs), (dtype,) * bool(outputs), **more)


LEGAL = {
    "an operation whose rules are not known": (
        sig("exchange", [[4]], [[4]], root=0),
        sig("exchange", [[5]], [], "Int", root=1),
    ),
    "gather_into_tensor: only the root has an output": (
        sig("gather_into_tensor", [[4]], [[12]], root=0),
        sig("gather_into_tensor", [[4]], [], root=0),
    ),
    "all_reduce, another shape of as many elements": (
        sig("all_reduce", [[4, 5]], [[4, 5]]),
        sig("all_reduce", [[20]], [[20]]),
    ),
    "reduce op not recorded on one side": (
        sig("all_reduce", [[4]], reduce_op="sum"),
        sig("all_reduce", [[4]], reduce_op=None),
    ),
    "all_gather of uneven pieces, lists agree": (
        sig("all_gather", [[1, 3]], [[1, 3], [2, 3], [3, 3]]),
        sig("all_gather", [[2, 3]], [[1, 3], [2, 3], [3, 3]]),
    ),
    "reduce_scatter of uneven pieces, input lists agree": (
        sig("reduce_scatter", [[1], [2], [3]], [[1]], reduce_op="sum"),
        sig("reduce_scatter", [[1], [2], [3]], [[2]], reduce_op="sum"),
    ),
    "gather: only the root has outputs": (
        sig("gather", [[4]], [[4], [4], [4]], root=0),
        sig("gather", [[4]], [], root=0),
    ),
    "scatter: only the root has inputs": (
        sig("scatter", [[4], [4], [4]], [[4]], root=0),
        sig("scatter", [], [[4]], root=0),
    ),
    "all_to_all_single with uneven splits that fit": (
        sig("all_to_all_single", [[6]], [[5]], input_splits=(1, 2, 3), output_splits=(1, 3, 1)),
        sig("all_to_all_single", [[6]], [[9]], input_splits=(3, 1, 2), output_splits=(2, 1, 6)),
    ),
    "all_to_all lists that fit": (
        sig("all_to_all", [[1], [2], [3]], [[1], [7], [9]]),
        sig("all_to_all", [[7], [1], [1]], [[2], [1], [4]]),
    ),
    "splits not recorded": (
        sig("all_to_all_single", [[6]], [[5]], input_splits=(), output_splits=()),
        sig("all_to_all_single", [[7]], [[9]], input_splits=(), output_splits=()),
    ),
    "barrier: being there is enough": (sig("barrier"), sig("barrier", [[1]])),
    "reduce: outputs off the root": (
        sig("reduce", [[4]], [[4]], root=0, reduce_op="sum"),
        sig("reduce", [[4]], [], root=0, reduce_op="sum"),
    ),
}

FAULTY = {
    "another operation": (sig("all_reduce", [[4]]), sig("broadcast", [[4]]), Category.OP_MISMATCH, "operation"),
    "another size": (sig("all_reduce", [[1000]]), sig("all_reduce", [[1001]]), Category.SIZE_MISMATCH, "input_sizes"),
    "another dtype of other bytes": (
        sig("all_reduce", [[4]]),
        sig("all_reduce", [[4]], dtype="Double"),
        Category.DTYPE_MISMATCH,
        "dtype",
    ),
    "another dtype of equal bytes": (
        sig("all_reduce", [[4]]),
        sig("all_reduce", [[4]], dtype="Int"),
        Category.DTYPE_MISMATCH,
        "dtype",
    ),
    "another root": (sig("broadcast", [[4]], root=0), sig("broadcast", [[4]], root=1), Category.ROOT_MISMATCH, "root"),
    "gather_into_tensor: another root": (
        sig("gather_into_tensor", [[4]], root=0),
        sig("gather_into_tensor", [[4]], root=1),
        Category.ROOT_MISMATCH,
        "root",
    ),
    "another reduce op": (
        sig("all_reduce", [[4]], reduce_op="sum"),
        sig("all_reduce", [[4]], reduce_op="max"),
        Category.REDUCE_OP_MISMATCH,
        "reduce_op",
    ),
    "all_gather: own piece is not what the other expects": (
        sig("all_gather", [[1]], [[1], [1], [1]]),
        sig("all_gather", [[2]], [[1], [1], [1]]),
        Category.SIZE_MISMATCH,
        "input_sizes",
    ),
    "all_gather: lists disagree": (
        sig("all_gather", [[1]], [[1], [1], [1]]),
        sig("all_gather", [[1]], [[1], [1], [2]]),
        Category.SIZE_MISMATCH,
        "output_sizes",
    ),
    "gather: a piece that the root does not expect": (
        sig("gather", [[4]], [[4], [4], [4]], root=0),
        sig("gather", [[5]], [], root=0),
        Category.SIZE_MISMATCH,
        "input_sizes",
    ),
    "scatter: a piece that the root does not send": (
        sig("scatter", [[4], [4], [4]], [[4]], root=0),
        sig("scatter", [], [[5]], root=0),
        Category.SIZE_MISMATCH,
        "output_sizes",
    ),
    "all_to_all_single: the pair that disagrees is named": (
        sig("all_to_all_single", [[6]], [[5]], input_splits=(1, 2, 3), output_splits=(1, 3, 1)),
        sig("all_to_all_single", [[6]], [[9]], input_splits=(4, 1, 1), output_splits=(2, 1, 6)),
        Category.SIZE_MISMATCH,
        "sizes sent from rank 1 to rank 0",
    ),
    "coalesced: one member of the list": (
        sig("all_reduce_coalesced", [[2], [3]]),
        sig("all_reduce_coalesced", [[2], [4]]),
        Category.SIZE_MISMATCH,
        "input_sizes",
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_differences_are_not_reported(name: str) -> None:
    a, b = LEGAL[name]
    assert compare(WORLD, call(0, signature=a), call(1, signature=b)) is None
    assert compare(WORLD, call(1, signature=b), call(0, signature=a)) is None


@pytest.mark.parametrize("name", FAULTY)
def test_differences_that_break_the_collective_are_reported_with_both_values(name: str) -> None:
    a, b, category, field = FAULTY[name]
    found = compare(WORLD, call(0, signature=a), call(1, signature=b))
    assert found is not None
    assert (found.category, found.field) == (category, field)
    assert found.first != found.second
    turned = compare(WORLD, call(1, signature=b), call(0, signature=a))
    assert turned is not None
    assert (turned.first, turned.second) == (found.second, found.first)
