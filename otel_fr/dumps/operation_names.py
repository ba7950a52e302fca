"""Reads recorders' names of calls: one name per operation, whatever the backend calls it (`otel_fr.operations`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from otel_fr.operations import GATHERING, LISTS, SPELLINGS, sides

if TYPE_CHECKING:
    from otel_fr.match.model import Sizes

COALESCED = "coalesced"
"""Name of the entry that ends a batch: the coalesced operation of the preceding calls with the same number."""

UNEVEN_LISTS = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
"""Recorders' names of the end of a batch in which the backend executed one list operation piece by piece."""

BATCH_ENDS = (COALESCED, *UNEVEN_LISTS)
"""Recorders' names of the entry that ends a batch. In a column of batch ends, an entry has the index plus 1, or 0."""

HOOK = "c10d"
"""The backend in the names of calls that torch 2.14's ``FlightRecorderHook`` recorded.

The hook sets ``retired`` when the call has been issued. It numbers a group's calls from the time when it was attached.
"""

_P2P = re.compile(r"(send|recv)\s+(\d+|\?)\s*(->|<-)\s*(\d+|\?)$")


class Name(NamedTuple):
    """A recorder's ``profiling_name``, parsed.

    Attributes:
        backend: ``""`` if the name has none.
        operation: `torch.distributed`'s name. If the recorder's spelling is unknown, that spelling.
        raw: the recorder's spelling without the backend.
        source, destination: ranks of a send or receive within the process group. None: not recorded.
        any_source: a receive that accepts any sender.
    """

    backend: str
    operation: str
    raw: str
    source: int | None = None
    destination: int | None = None
    any_source: bool = False


def coalesced(name: Name, ins: Sizes, outs: Sizes) -> tuple[str, Sizes, Sizes]:
    """The operation and the sizes of a call whose recorded name may hide that it is coalesced.

    torch 2.14's hook records an all_gather of several tensors as ``allgather``, like an all_gather of one
    tensor. The call has an output for each tensor (`all_gather_into_tensor_coalesced`), or a list for each
    (`all_gather_coalesced`). gloo's recorder writes one output for all tensors, so their sizes are not recorded. The
    same is true for reduce_scatter. If pieces may have different sizes (``all_gather_v``), one tensor that stands for
    the list does not show the sizes either.
    """
    operation = name.operation
    own, lists = sides(operation, ins, outs)
    if operation not in LISTS or (len(own) < 2 and not name.raw.endswith("_v")):
        return operation, ins, outs
    if len(own) < 2:
        known = len(lists) > 1
    elif operation not in GATHERING:
        operation, known = "reduce_scatter_tensor_coalesced", len(lists) == len(own)
    else:
        known = len(lists) >= len(own)
        operation = "all_gather_into_tensor_coalesced" if len(lists) == len(own) else "all_gather_coalesced"
    if known:
        return operation, ins, outs
    return operation, *sides(name.operation, own, ())


def parse(profiling_name: str) -> Name:
    """Read ``"nccl:_all_gather_base"``, ``"gloo:send 0->1"``, ``"recv 1<-?"`` and the like. Never raises."""
    backend, colon, raw = profiling_name.partition(":")
    if not colon:
        backend, raw = "", profiling_name
    if raw not in SPELLINGS and ":" in raw:
        raw = raw.rpartition(":")[2]
    raw = raw.strip()
    pair = _P2P.match(raw)
    if pair:
        kind, first, arrow, second = pair.groups()
        if arrow == "<-":
            first, second = second, first
        numbers = [int(text) if text != "?" else None for text in (first, second)]
        return Name(backend, kind, kind, numbers[0], numbers[1], kind == "recv" and numbers[0] is None)
    any_source = raw.lower().replace("_", "").startswith("recvanysource")
    return Name(backend, SPELLINGS.get(raw, raw), raw, any_source=any_source)
