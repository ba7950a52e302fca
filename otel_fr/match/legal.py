"""When two ranks' calls of one collective may differ, and when that is a fault.

The rules are those of the operations themselves (what each rank must bring for the result to be defined), so
they hold for every backend. What a recorder did not record (``None``, or an empty list) never disagrees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from otel_fr.match.model import Call, Category, Group, Signature, Sizes


class Difference(NamedTuple):
    """A disagreement of two calls: its category, the field's name, and both values as text."""

    category: Category
    field: str
    first: str
    second: str


_REDUCING = frozenset(
    {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
    | {"reduce_scatter_tensor_coalesced"}
)
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_NOTHING_TO_COMPARE = frozenset({"barrier", "monitored_barrier"})


def _numels(sizes: Sizes) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in sizes)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value)


def compare(group: Group, a: Call, b: Call) -> Difference | None:
    """The most telling disagreement of two ranks' calls of one instance, or None if both are legal together.

    For a send and its receive the rule is the same one: what is sent must fit what is received.
    """
    if a.signature == b.signature and _even(a.signature):
        return None
    return _compare(group.ranks, a.rank, a.signature, b.rank, b.signature)


@lru_cache(maxsize=4_096)
def _even(signature: Signature) -> bool:
    """Every member's piece is alike, so that equal signatures cannot disagree."""
    return signature.operation not in _PAIRWISE or (
        not signature.input_splits
        and not signature.output_splits
        and len(set(_numels(signature.input_sizes))) <= 1
        and len(set(_numels(signature.output_sizes))) <= 1
    )


@lru_cache(maxsize=65_536)
def _compare(ranks: tuple[int, ...], rank_a: int, a: Signature, rank_b: int, b: Signature) -> Difference | None:
    if {a.operation, b.operation} == {"send", "recv"}:
        return _compare_pair(a, b)
    if a.operation != b.operation:
        return Difference(Category.OP_MISMATCH, "operation", a.operation, b.operation)
    if a.operation in _NOTHING_TO_COMPARE:
        return None
    dtypes_a, dtypes_b = _dtypes(a), _dtypes(b)
    if dtypes_a and dtypes_b and dtypes_a != dtypes_b:
        return Difference(
            Category.DTYPE_MISMATCH, "dtype", _text(tuple(sorted(dtypes_a))), _text(tuple(sorted(dtypes_b)))
        )
    sizes = _PAIRWISE.get(a.operation, _same_input)(ranks, rank_a, a, rank_b, b)
    if sizes is not None:
        return Difference(Category.SIZE_MISMATCH, *sizes)
    if a.operation in _ROOTED and None not in (a.root, b.root) and a.root != b.root:
        return Difference(Category.ROOT_MISMATCH, "root", str(a.root), str(b.root))
    if a.operation in _REDUCING and None not in (a.reduce_op, b.reduce_op) and a.reduce_op != b.reduce_op:
        return Difference(Category.REDUCE_OP_MISMATCH, "reduce_op", str(a.reduce_op), str(b.reduce_op))
    return None


def _dtypes(signature: Signature) -> frozenset[str]:
    """The dtypes that must agree: those of the side every rank has."""
    side = signature.output_dtypes if signature.operation == "scatter" else signature.input_dtypes
    return frozenset(name for name in side if name)


def _compare_pair(a: Signature, b: Signature) -> Difference | None:
    send, recv = (a, b) if a.operation == "send" else (b, a)
    sent, received = send.input_sizes, recv.output_sizes or recv.input_sizes
    sent_types, received_types = send.input_dtypes, recv.output_dtypes or recv.input_dtypes
    difference: Difference | None = None
    if sent_types and received_types and sent_types != received_types:
        difference = Difference(Category.DTYPE_MISMATCH, "dtype", _text(sent_types), _text(received_types))
    elif sent and received and sum(_numels(sent)) != sum(_numels(received)):
        difference = Difference(Category.SIZE_MISMATCH, "sizes", _text(sent), _text(received))
    if difference is not None and send is b:
        difference = difference._replace(first=difference.second, second=difference.first)
    return difference


_Ranks = tuple[int, ...]
_Found = tuple[str, str, str] | None
"""The field, the first call's value and the second's; None: they fit."""
_SizeRule = Callable[[_Ranks, int, Signature, int, Signature], _Found]


def _sizes(name: str, a: Sizes, b: Sizes) -> _Found:
    if a and b and _numels(a) != _numels(b):
        return name, _text(a), _text(b)
    return None


def _same_input(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    return _sizes("input_sizes", a.input_sizes, b.input_sizes)


def _piece(sizes: Sizes, ranks: _Ranks, rank: int) -> int | None:
    """Elements of the list entry that belongs to ``rank``; None where the list is not one entry per member."""
    if len(sizes) != len(ranks) or rank not in ranks:
        return None
    return prod(sizes[ranks.index(rank)])


def _own(sizes: Sizes) -> int | None:
    return sum(_numels(sizes)) if sizes else None


def _pieces_fit(name: str, given: int | None, expected: int | None) -> _Found:
    if given is None or expected is None or given == expected:
        return None
    return name, f"{given} elements", f"{expected} elements"


def _all_gather(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    lists = sum(_numels(a.output_sizes)) != sum(_numels(b.output_sizes)) and a.output_sizes and b.output_sizes
    if lists:
        return "output_sizes", _text(a.output_sizes), _text(b.output_sizes)
    if len(a.output_sizes) == len(b.output_sizes) == len(ranks):
        found = _sizes("output_sizes", a.output_sizes, b.output_sizes)
        found = found or _pieces_fit("input_sizes", _own(a.input_sizes), _piece(b.output_sizes, ranks, ra))
        return found or _turn(_pieces_fit("input_sizes", _own(b.input_sizes), _piece(a.output_sizes, ranks, rb)))
    return None


def _reduce_scatter(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    if len(a.input_sizes) == len(b.input_sizes):
        return _sizes("input_sizes", a.input_sizes, b.input_sizes)
    return _pieces_fit("input_sizes", _own(a.input_sizes), _own(b.input_sizes))


def _gather(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    if ra == a.root == b.root:
        return _turn(_pieces_fit("input_sizes", _own(b.input_sizes), _piece(a.output_sizes, ranks, rb)))
    if rb == a.root == b.root:
        return _pieces_fit("input_sizes", _own(a.input_sizes), _piece(b.output_sizes, ranks, ra))
    return None


def _scatter(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    if ra == a.root == b.root:
        return _turn(_pieces_fit("output_sizes", _own(b.output_sizes), _piece(a.input_sizes, ranks, rb)))
    if rb == a.root == b.root:
        return _pieces_fit("output_sizes", _own(a.output_sizes), _piece(b.input_sizes, ranks, ra))
    return None


def _turn(found: _Found) -> _Found:
    return found and (found[0], found[2], found[1])


def _all_to_all(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    there = _pieces_fit("sizes", _piece(a.input_sizes, ranks, rb), _piece(b.output_sizes, ranks, ra))
    if there:
        return f"sizes sent from {ra} to {rb}", there[1], there[2]
    back = _pieces_fit("sizes", _piece(b.input_sizes, ranks, ra), _piece(a.output_sizes, ranks, rb))
    return back and (f"sizes sent from {rb} to {ra}", back[2], back[1])


def _share(sizes: Sizes, splits: tuple[int, ...] | None, ranks: _Ranks, rank: int) -> int | None:
    """Elements of one tensor that go to (or come from) ``rank``."""
    if len(sizes) != 1 or rank not in ranks or splits == ():
        return None
    total, index = prod(sizes[0]), ranks.index(rank)
    if splits is None:
        return total // len(ranks) if total % len(ranks) == 0 else None
    if len(splits) != len(ranks) or not sizes[0]:
        return None
    return splits[index] * prod(sizes[0][1:])


def _all_to_all_single(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    there = _pieces_fit(
        "sizes", _share(a.input_sizes, a.input_splits, ranks, rb), _share(b.output_sizes, b.output_splits, ranks, ra)
    )
    if there:
        return f"sizes sent from {ra} to {rb}", there[1], there[2]
    back = _pieces_fit(
        "sizes", _share(b.input_sizes, b.input_splits, ranks, ra), _share(a.output_sizes, a.output_splits, ranks, rb)
    )
    return back and (f"sizes sent from {rb} to {ra}", back[2], back[1])


_PAIRWISE: dict[str, _SizeRule] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
"""Operations whose sizes are judged with the two ranks' places in the group at hand; all others: equal inputs."""
