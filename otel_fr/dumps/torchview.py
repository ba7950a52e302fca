"""How a call must be written so that PyTorch's analyzer (``torchfrtrace``, torch 2.13) judges it correctly.

That analyzer has its own rules for comparing fields. A legal call that would be a fault under them is written the way
ProcessGroupNCCL writes it, or, where that fails too, without the field that is compared; what was recorded is then
kept under an ``otel_fr_`` key. docs/reference/dump-format.md lists the cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from otel_fr.operations import ALL_TO_ALL, MESSAGES, OPERATIONS, outputs, way

Sizes = Sequence[Sequence[int]]
_NO_SIZES: list[list[int]] = [[]]
"""Sizes that the analyzer skips when it compares; it cannot read a list without a first item."""


class View(NamedTuple):
    """The values for ``profiling_name`` (after the backend), ``input_sizes`` and ``output_sizes``."""

    name: str
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]


def view(operation: str, input_sizes: Sizes, output_sizes: Sizes) -> View:
    """The call as the analyzer must see it; sizes are one shape per tensor, as the call was given them."""
    known = OPERATIONS.get(operation)
    name = known.analyzer or operation if known else operation
    given = [list(shape) for shape in input_sizes]
    taken = [list(shape) for shape in output_sizes]
    if outputs(operation) in ("same", "root"):
        return View(name, given, taken or given)
    if operation in MESSAGES:
        # Compared: the input of the send with the output of the receive.
        return View(name, given or taken, taken or given)
    if operation == "all_gather":
        flat = _stacked(taken)
        return View(name, given, flat) if flat else View("ALLGATHER_coalesced", _NO_SIZES, taken)
    if operation == "reduce_scatter":
        flat = _stacked(given)
        return View(name, flat, taken) if flat else View("REDUCE_SCATTER_coalesced", given, _NO_SIZES)
    if operation in ALL_TO_ALL:
        # Compared: the first input of all ranks together with the first output of all ranks together.
        return View(name, _total(given), _total(taken))
    return View(name, given, taken)


def _stacked(shapes: list[list[int]]) -> list[list[int]]:
    """One tensor that holds a list of equal ones, as NCCL records it; empty if they are not equal."""
    if not shapes or any(shape != shapes[0] for shape in shapes):
        return []
    return [[len(shapes), *shapes[0]]]


def _total(shapes: list[list[int]]) -> list[list[int]]:
    return shapes if len(shapes) == 1 else [[sum(prod(shape) for shape in shapes)]]


class Pair(NamedTuple):
    """The process group that a send or receive is written under.

    The analyzer matches a single send or receive only if every member of its process group takes part in it. So
    it is given a group of the two ranks, one per direction and tag, whose sequence number counts its messages.

    Attributes:
        key: its name in ``pg_config``.
        ranks: its global ranks, rising.
        name: ``"send 0->1"``, in ranks within that group.
    """

    key: str
    ranks: tuple[int, ...]
    name: str


def pair(group: str, operation: str, rank: int, peer: int | None, tag: int | None) -> Pair:
    """The pair of one send or receive of ``rank``; ranks are global.

    A receive from any source (``peer`` None) has no pair; the analyzer cannot read it as such, so it stands alone.
    """
    if peer is None:
        return Pair(f"{group} p2p any->{rank}", (rank,), f"{operation} 0{'->' if operation == 'send' else '<-'}0")
    source, destination = way(operation, rank, peer)
    ranks = tuple(sorted({source, destination}))
    key = f"{group} p2p {source}->{destination}" + (f" tag {tag}" if tag else "")
    first, second = ranks.index(source), ranks.index(destination)
    name = f"send {first}->{second}" if operation == "send" else f"recv {second}<-{first}"
    return Pair(key, ranks, name)
