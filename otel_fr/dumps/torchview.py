"""Writes calls so that PyTorch's analyzer (``torchfrtrace``, torch 2.13) judges them correctly.

The analyzer has its own rules for comparing fields. A legal call that breaks them is written as ProcessGroupNCCL writes
it. If that breaks them, too, the call is written without the compared field, and the recorded value is kept under an
``otel_fr_`` key. docs/reference/dump-format.md lists the cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from otel_fr.operations import ALL_TO_ALL, MESSAGES, OPERATIONS, outputs, way

Sizes = Sequence[Sequence[int]]
_NO_SIZES: list[list[int]] = [[]]
"""Sizes that the analyzer does not compare. It cannot read a list without a first item."""


class View(NamedTuple):
    """The values for ``profiling_name`` (after the backend), ``input_sizes`` and ``output_sizes``."""

    name: str
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]


def view(operation: str, input_sizes: Sizes, output_sizes: Sizes) -> View:
    """The call as the analyzer must see it. The arguments have one shape per tensor."""
    known = OPERATIONS.get(operation)
    name = known.analyzer or operation if known else operation
    given = [list(shape) for shape in input_sizes]
    taken = [list(shape) for shape in output_sizes]
    if outputs(operation) in ("same", "root"):
        return View(name, given, taken or given)
    if operation in MESSAGES:
        # The analyzer compares the input of the send with the output of the receive.
        return View(name, given or taken, taken or given)
    if operation == "all_gather":
        flat = _stacked(taken)
        return View(name, given, flat) if flat else View("ALLGATHER_coalesced", _NO_SIZES, taken)
    if operation == "reduce_scatter":
        flat = _stacked(given)
        return View(name, flat, taken) if flat else View("REDUCE_SCATTER_coalesced", given, _NO_SIZES)
    if operation in ALL_TO_ALL:
        # The analyzer compares two sums over all ranks: of the first inputs, and of the first outputs.
        return View(name, _total(given), _total(taken))
    return View(name, given, taken)


def _stacked(shapes: list[list[int]]) -> list[list[int]]:
    """The shape of one tensor that contains a list of tensors, as NCCL records it. Empty if their shapes differ."""
    if not shapes or any(shape != shapes[0] for shape in shapes):
        return []
    return [[len(shapes), *shapes[0]]]


def _total(shapes: list[list[int]]) -> list[list[int]]:
    return shapes if len(shapes) == 1 else [[sum(prod(shape) for shape in shapes)]]


class Pair(NamedTuple):
    """The process group under which a send or receive is written.

    The analyzer matches a single send or receive only if every member of its process group takes part. So each
    direction and tag gets a group of the two ranks. The sequence numbers in this group count the messages.

    Attributes:
        key: the group's name in ``pg_config``.
        ranks: the group's global ranks, in ascending order.
        name: ``"send 0->1"``, with ranks within this group.
    """

    key: str
    ranks: tuple[int, ...]
    name: str


def pair(group: str, operation: str, rank: int, peer: int | None, tag: int | None) -> Pair:
    """The pair of one send or receive of ``rank``. Ranks are global.

    A receive from any source (``peer`` None) has no pair. The analyzer has no form for it, so it stands alone.
    """
    if peer is None:
        return Pair(f"{group} p2p any->{rank}", (rank,), f"{operation} 0{'->' if operation == 'send' else '<-'}0")
    source, destination = way(operation, rank, peer)
    ranks = tuple(sorted({source, destination}))
    key = f"{group} p2p {source}->{destination}" + (f" tag {tag}" if tag else "")
    first, second = ranks.index(source), ranks.index(destination)
    name = f"send {first}->{second}" if operation == "send" else f"recv {second}<-{first}"
    return Pair(key, ranks, name)
