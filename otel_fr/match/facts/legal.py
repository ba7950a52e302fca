"""When two ranks' calls of one collective may differ, and when that is a fault.

The rules follow from the operations themselves (what each rank must pass for the result to be defined), so they hold
for every backend. A field that was not recorded (``None``, or an empty list) never disagrees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from otel_fr.fingerprint import common_dtypes
from otel_fr.match.facts.size_rules import PIECE_RULES, as_text, compare_sizes, elements, listed, numels, shares
from otel_fr.match.finding import Category
from otel_fr.match.model import Call, Group, Signature
from otel_fr.operations import (
    ALL_TO_ALL,
    COMPARED,
    LISTS,
    MESSAGES,
    OPERATIONS,
    PIECEWISE,
    REDUCING,
    ROOTED,
    NewGroup,
    outputs,
    pieces,
    sides,
)
from otel_fr.presentation import group_text, ranks_text

MAX_UNFIT = 4_096
"""Disagreeing pairs of one all_to_all that are examined."""


MAX_CACHED = 8_192
"""Cached results of one function."""
MAX_CACHED_SIZE = 256
"""Numbers and texts in the arguments of a cached result. All results together take a few megabytes, not gigabytes."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Cache the results of a pure function of signatures, ranks and numbers, unless its arguments are large."""
    plain: Callable[..., _R] = function
    known = lru_cache(maxsize=MAX_CACHED)(plain)

    @wraps(function)
    def call(*args: Any) -> _R:
        size = 0
        for value in args:
            if isinstance(value, tuple):
                size += size_of(value) if isinstance(value, Signature) else len(value) // 4
        return known(*args) if size <= MAX_CACHED_SIZE else plain(*args)

    return cast("Callable[_P, _R]", call)


def size_of(signature: Signature) -> int:
    """Return how many numbers and texts a signature has."""
    ins, outs = signature.input_sizes, signature.output_sizes
    count = len(ins) + len(outs) + len(signature.input_dtypes) + len(signature.output_dtypes)
    count += sum(map(len, ins)) + sum(map(len, outs))
    if signature.new_group is not None:
        count += len(signature.new_group.ranks)
    return count + len(signature.input_splits or ()) + len(signature.output_splits or ())


class Difference(NamedTuple):
    """A disagreement of two calls: its category, the field's name, and both values as text."""

    category: Category
    field: str
    first: str
    second: str


_KNOWN = COMPARED | MESSAGES


def compare(group: Group, a: Call, b: Call) -> Difference | None:
    """Return the most specific difference between two ranks' calls of one instance; None: they are legal together.

    A send and its receive are legal together if what is sent fits what is received.
    """
    if a.signature == b.signature and is_even(a.signature, len(group.ranks)):
        return None
    return _compare(group.ranks, a.rank, a.signature, b.rank, b.signature)


@_cached
def is_even(signature: Signature, members: int = 0) -> bool:
    """True if all members' pieces have one size, so that equal signatures cannot disagree.

    Args:
        members: size of the process group; 0: not known.
    """
    if signature.operation not in PIECEWISE:
        return True
    flat = _flat_list(signature, members)
    if flat is not None:
        piece, whole = flat
        return piece * members == whole
    if () in (signature.input_splits, signature.output_splits):
        return elements(signature.input_sizes) == elements(signature.output_sizes)
    return (
        not signature.input_splits
        and not signature.output_splits
        and len(set(numels(signature.input_sizes))) <= 1
        and len(set(numels(signature.output_sizes))) <= 1
    )


def _flat_list(signature: Signature, members: int) -> tuple[int, int] | None:
    """Return the elements of the rank's own piece and of the full list, if a recorder recorded the list as one tensor.

    c10d's hook (PyTorch 2.14) and the recorders of gloo and NCCL do so. Otherwise the result is None. It is also None
    if the list is stacked, as gloo's and NCCL's lists are, and has another number of pieces than there are members:
    torch refuses such lists, so some members are unknown.
    """
    if signature.operation not in LISTS or members < 2:
        return None
    piece, whole = sides(signature.operation, signature.input_sizes, signature.output_sizes)
    if not piece or len(whole) != 1:
        return None
    if len(piece) == 1 and whole[0] and whole[0][1:] == piece[0] and whole[0][0] != members:
        return None
    return sum(numels(piece)), sum(numels(whole))


def _created(new: NewGroup) -> str:
    """``"tp (ranks 0-3)"``."""
    members = ranks_text(new.ranks) if new.ranks else "members not known"
    return f"{group_text(new.name, new.description)} ({members})"


def alike(a: Signature, b: Signature) -> Difference | None:
    """Like `compare`, but only for differences that do not depend on the ranks' positions in the group."""
    return _alike(a, b) if a is not b else None


@_cached
def common_part(signature: Signature) -> Signature:
    """Return the part of a signature that `alike` compares: two signatures with the same common part are alike."""
    operation = signature.operation
    if operation in MESSAGES or signature.new_group is not None:
        return signature
    bare = Signature(operation, reduce_op=signature.reduce_op, root=signature.root)
    if operation not in _KNOWN:
        return Signature(operation)
    dtypes = tuple(sorted(_dtypes(signature)))
    known = OPERATIONS[operation]
    ins = signature.input_sizes if known.sizes == "input" else ()
    outs = signature.output_sizes if known.sizes == "output" else ()
    if known.dtypes == "output":
        return bare._replace(input_sizes=ins, output_sizes=outs, output_dtypes=dtypes)
    return bare._replace(input_sizes=ins, output_sizes=outs, input_dtypes=dtypes)


@_cached
def own_difference(members: int, signature: Signature) -> Difference | None:
    """Return what is wrong with a call regardless of other ranks' calls: its outputs do not follow from its inputs.

    torch rejects most such calls before they are enqueued, but not every backend checks. ``first`` is what the rank
    has, ``second`` what would be right.

    Args:
        members: size of the process group; 0: unknown.
    """
    ins, outs = numels(signature.input_sizes), numels(signature.output_sizes)
    operation = signature.operation
    if not members or not ins or not outs:
        return None
    if pieces(operation) in ("all", "root"):
        (_, lists), (_, name) = sides(operation, ins, outs), sides(operation, "input_sizes", "output_sizes")
        if len(lists) not in (1, members):
            return Difference(Category.SIZE_MISMATCH, name, f"{len(lists)} tensors", f"{members} tensors")
        flat = _flat_list(signature, members)
        if flat is not None and flat[0] > flat[1]:
            return Difference(Category.SIZE_MISMATCH, name, f"{flat[1]} elements", f"{flat[0]} elements or more")
        return None
    if outputs(operation) == "same" and ins != outs:
        return Difference(
            Category.SIZE_MISMATCH, "output_sizes", as_text(signature.output_sizes), as_text(signature.input_sizes)
        )
    if outputs(operation) not in ("larger", "smaller") or len(ins) != len(outs):
        return None
    small, large = ("input", ins), ("output", outs)
    if outputs(operation) == "smaller":
        small, large = large, small
    wanted = tuple(n * members for n in small[1])
    if large[1] == wanted:
        return None
    given, right = (" and ".join(map(str, numbers)) for numbers in (large[1], wanted))
    right = f"{right} elements ({small[0]} x {members} ranks)"
    return Difference(Category.SIZE_MISMATCH, f"{large[0]}_sizes", f"{given} elements", right)


@_cached
def flat_difference(members: int, signature: Signature) -> Difference | None:
    """Return how a flattened list differs from one with a piece of the rank's own size for each member.

    Such a difference is legal, because others' pieces may have other sizes. It shows which rank is wrong if the
    `totals` are. ``first`` and ``second`` are as in `own_difference`.
    """
    flat = _flat_list(signature, members)
    if flat is None or flat[0] * members == flat[1]:
        return None
    own, name = sides(signature.operation, "input", "output")
    wanted = f"{flat[0] * members} elements ({own} x {members} ranks)"
    return Difference(Category.SIZE_MISMATCH, f"{name}_sizes", f"{flat[1]} elements", wanted)


def totals(signatures: Sequence[Signature]) -> tuple[int, int] | None:
    """Return the elements that all members together send, and that they receive, where both must be equal.

    Used if single pieces are unknown: for lists that a recorder flattened, and for splits that it did not record. None:
    not all sizes are recorded, or the rule does not apply to the operation.
    """
    operation = signatures[0].operation
    sent, taken = [elements(s.input_sizes) for s in signatures], [elements(s.output_sizes) for s in signatures]
    if operation in LISTS:
        if any(len(sides(operation, s.input_sizes, s.output_sizes)[1]) != 1 for s in signatures):
            return None
        own, whole = sides(operation, sent, taken)
        sent, taken = sides(operation, own, whole[:1])
    elif operation not in ALL_TO_ALL:
        return None
    if None in sent or None in taken:
        return None
    return sum(n or 0 for n in sent), sum(n or 0 for n in taken)


@_cached
def _compare(ranks: tuple[int, ...], rank_a: int, a: Signature, rank_b: int, b: Signature) -> Difference | None:
    difference = _alike(a, b)
    if difference is not None and difference.category in (Category.OP_MISMATCH, Category.DTYPE_MISMATCH):
        return difference
    rule = PIECE_RULES.get(pieces(a.operation)) if a.operation == b.operation else None
    sizes = rule and rule(ranks, rank_a, a, rank_b, b)
    return Difference(Category.SIZE_MISMATCH, *sizes) if sizes else difference


@_cached
def _alike(a: Signature, b: Signature) -> Difference | None:
    if {a.operation, b.operation} == MESSAGES:
        return _compare_pair(a, b)
    if a.operation != b.operation:
        return Difference(Category.OP_MISMATCH, "operation", a.operation, b.operation)
    if a.new_group is not None and b.new_group is not None and a.new_group[1:3] != b.new_group[1:3]:
        return Difference(Category.OP_MISMATCH, "group", _created(a.new_group), _created(b.new_group))
    if a.operation not in _KNOWN:
        return None
    dtypes_a, dtypes_b = _dtypes(a), _dtypes(b)
    if dtypes_a and dtypes_b and dtypes_a != dtypes_b:
        return Difference(
            Category.DTYPE_MISMATCH, "dtype", as_text(tuple(sorted(dtypes_a))), as_text(tuple(sorted(dtypes_b)))
        )
    sizes = compare_sizes(a, b)
    if sizes is not None:
        return Difference(Category.SIZE_MISMATCH, *sizes)
    if a.operation in ROOTED and None not in (a.root, b.root) and a.root != b.root:
        return Difference(Category.ROOT_MISMATCH, "root", str(a.root), str(b.root))
    if a.operation in REDUCING and None not in (a.reduce_op, b.reduce_op) and a.reduce_op != b.reduce_op:
        return Difference(Category.REDUCE_OP_MISMATCH, "reduce_op", str(a.reduce_op), str(b.reduce_op))
    return None


def _dtypes(signature: Signature) -> frozenset[str]:
    """Return the dtypes that must agree: those on the side that every rank has."""
    return frozenset(name for name in common_dtypes(signature) if name)


def _compare_pair(a: Signature, b: Signature) -> Difference | None:
    send, recv = (a, b) if a.operation == "send" else (b, a)
    sent, received = send.input_sizes, recv.output_sizes or recv.input_sizes
    sent_types, received_types = send.input_dtypes, recv.output_dtypes or recv.input_dtypes
    difference: Difference | None = None
    if sent_types and received_types and sent_types != received_types:
        difference = Difference(Category.DTYPE_MISMATCH, "dtype", as_text(sent_types), as_text(received_types))
    elif sent and received and sum(numels(sent)) != sum(numels(received)):
        difference = Difference(Category.SIZE_MISMATCH, "sizes", as_text(sent), as_text(received))
    if difference is not None and send is b:
        difference = difference._replace(first=difference.second, second=difference.first)
    return difference


def piece_difference(group: Group, holder: Call, owner: Call) -> Difference | None:
    """Compare the owner's piece (``first``) with its entry in the holder's list (``second``)."""
    found = listed(group.ranks, holder.signature, owner.rank, owner.signature)
    return Difference(Category.SIZE_MISMATCH, *found) if found else None


def unfit_pairs(group: Group, signatures: Mapping[int, Signature]) -> list[tuple[int, int]]:
    """Return the pairs of members of an all_to_all that disagree, ascending; at most `MAX_UNFIT` of them.

    It selects the pairs to `compare` in groups so large that comparing every pair would take too long.

    Args:
        signatures: rank -> its signature.
    """
    position_of = {rank: position for position, rank in enumerate(group.ranks)}
    rows = sorted(rank for rank in signatures if rank in position_of)
    columns = np.array([position_of[rank] for rank in rows], np.intp)
    given, taken = (np.full((len(rows), len(rows)), -1, np.int64) for _ in range(2))
    for row, rank in enumerate(rows):
        s = signatures[rank]
        single = pieces(s.operation) == "splits"
        for matrix, sizes, splits in ((given, s.input_sizes, s.input_splits), (taken, s.output_sizes, s.output_splits)):
            each = shares(sizes, splits, len(position_of)) if single else numels(sizes)
            if len(each) == len(position_of):
                with contextlib.suppress(OverflowError):  # a damaged file may contain any sizes: they are not compared
                    matrix[row] = np.array(each, np.int64)[columns]
    unfit = (given != taken.T) & (given >= 0) & (taken.T >= 0)
    pairs = {(min(rows[i], rows[j]), max(rows[i], rows[j])) for i, j in np.argwhere(unfit)[: 2 * MAX_UNFIT]}
    return sorted(pairs)[:MAX_UNFIT]
