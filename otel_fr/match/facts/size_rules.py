"""Which sizes of two members' calls of one collective must fit, by operation; `legal` applies the rules.

A list that was not recorded (empty) never disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from otel_fr.fingerprint import common_sizes
from otel_fr.match.model import Signature, Sizes
from otel_fr.operations import GATHERING, OPERATIONS

_Ranks = tuple[int, ...]
_Found = tuple[str, str, str] | None
"""The field, the first call's value and the second's; None: they fit."""
_PieceRule = Callable[[_Ranks, int, Signature, int, Signature], _Found]


def numels(sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Elements of each tensor."""
    return tuple(prod(shape) for shape in sizes)


def elements(sizes: Sequence[tuple[int, ...]]) -> int | None:
    """Elements of all tensors together; None: no size was recorded."""
    return sum(numels(sizes)) if sizes else None


def as_text(value: object) -> str:
    """A field's value as an incident shows it: ``"[[4, 8]]"``, ``"[scalar]"`` for a tensor without dimensions."""
    if isinstance(value, tuple):
        return "[" + ", ".join("scalar" if item == () else as_text(item) for item in value) + "]"
    return str(value)


# Rules that hold for any two members.


def compare_sizes(a: Signature, b: Signature) -> _Found:
    """Compare the sizes that any two members must agree in: those of one side.

    Lists with an entry for each member must agree entry by entry, a list that a recorder flattened only in total.
    """
    known, ours, theirs = OPERATIONS[a.operation], common_sizes(a), common_sizes(b)
    if not ours or not theirs:
        return None
    is_flat = known.pieces == "all" and len(ours) != len(theirs)
    differ = elements(ours) != elements(theirs) if is_flat else numels(ours) != numels(theirs)
    return (f"{known.sizes}_sizes", as_text(ours), as_text(theirs)) if differ else None


# Rules that need the two members' positions in the group.


def _piece(sizes: Sizes, ranks: _Ranks, rank: int) -> int | None:
    """Return the elements of the list entry that belongs to ``rank``; None: the list has another number of entries."""
    if len(sizes) != len(ranks) or rank not in ranks:
        return None
    return prod(sizes[ranks.index(rank)])


def _pieces_fit(name: str, given: int | None, expected: int | None) -> _Found:
    if given is None or expected is None or given == expected:
        return None
    return name, f"{given} elements", f"{expected} elements"


def listed(ranks: _Ranks, holder: Signature, owner: int, own: Signature) -> _Found:
    """Compare the owner's piece with its entry in the holder's list. The owner's value comes first."""
    if own.operation in GATHERING:
        return _pieces_fit("input_sizes", elements(own.input_sizes), _piece(holder.output_sizes, ranks, owner))
    return _pieces_fit("output_sizes", elements(own.output_sizes), _piece(holder.input_sizes, ranks, owner))


def _lists(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    return listed(ranks, b, ra, a) or _turn(listed(ranks, a, rb, b))


def _root_list(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    if a.root != b.root:
        return None
    if ra == a.root:
        return _turn(listed(ranks, a, rb, b))
    return listed(ranks, b, ra, a) if rb == a.root else None


def _turn(found: _Found) -> _Found:
    return found and (found[0], found[2], found[1])


def _all_to_all(ranks: _Ranks, ra: int, a: Signature, rb: int, b: Signature) -> _Found:
    return _sent(ranks, ra, a, rb, b) or _turn(_sent(ranks, rb, b, ra, a))


def _sent(ranks: _Ranks, source: int, sent: Signature, destination: int, taken: Signature) -> _Found:
    """Compare what one rank sends to the other with what the other takes from it."""
    if OPERATIONS[sent.operation].pieces == "splits":
        given = _share(sent.input_sizes, sent.input_splits, ranks, destination)
        expected = _share(taken.output_sizes, taken.output_splits, ranks, source)
    else:
        given = _piece(sent.input_sizes, ranks, destination)
        expected = _piece(taken.output_sizes, ranks, source)
    return _pieces_fit(f"sizes sent from rank {source} to rank {destination}", given, expected)


def shares(sizes: Sizes, splits: tuple[int, ...] | None, members: int) -> tuple[int, ...]:
    """Elements of one tensor that go to (or come from) each member; empty: not known."""
    if len(sizes) != 1 or splits == ():
        return ()
    if splits is None:
        total = prod(sizes[0])
        return (total // members,) * members if total % members == 0 else ()
    if len(splits) != members or not sizes[0]:
        return ()
    row = prod(sizes[0][1:])
    return tuple(split * row for split in splits)


def _share(sizes: Sizes, splits: tuple[int, ...] | None, ranks: _Ranks, rank: int) -> int | None:
    known = shares(sizes, splits, len(ranks)) if rank in ranks else ()
    return known[ranks.index(rank)] if known else None


PIECE_RULES: dict[str, _PieceRule] = {
    "all": _lists,
    "root": _root_list,
    "own": _all_to_all,
    "splits": _all_to_all,
}
"""`otel_fr.operations.Operation.pieces` -> rule: what one member gives to another must be what the other takes."""
