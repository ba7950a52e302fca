"""One name per operation for all recorders' spellings, and the names that PyTorch's analyzer knows.

Sources of the spellings: the ``profiling_name`` of torch's ProcessGroupNCCL / Gloo / XCCL, torch's c10d
operators, and torchcomms' flight-recorder hook.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otel_fr.match.model import Sizes

_SPELLINGS = {
    "all_reduce": "allreduce allreduce_ all_reduce_sparse sparse_all_reduce",
    "all_reduce_coalesced": "allreduce_coalesced allreduce_coalesced_",
    "broadcast": "_broadcast_oop broadcast_",
    "reduce": "_reduce_oop reduce_",
    "all_gather": "allgather allgather_ all_gather_v ALLGATHER_coalesced",
    "all_gather_coalesced": "allgather_coalesced allgather_coalesced_",
    "all_gather_into_tensor": "_all_gather_base _allgather_base _allgather_base_ all_gather_single",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced allgather_into_tensor_coalesced_",
    "reduce_scatter": "reduce_scatter_ reduce_scatter_v REDUCE_SCATTER_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base _reduce_scatter_base_ reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced_",
    "gather": "gather_ gather_single",
    "gather_into_tensor": "gather_into_tensor_",
    "scatter": "scatter_",
    "all_to_all": "alltoall alltoall_",
    "all_to_all_single": "alltoall_base alltoall_base_ all_to_all_v_single",
    "barrier": "all_reduce_barrier",
    "monitored_barrier": "monitored_barrier_",
    "send": "send_",
    "recv": "recv_ recvAnySource recv_any_source recv_any_source_",
}

OPERATIONS = {spelling: name for name, others in _SPELLINGS.items() for spelling in (name, *others.split())}
"""Spelling (without the backend) -> `torch.distributed`'s name. A spelling that is not here is kept as it is."""

COALESCED = "coalesced"
"""Ends a batch: the coalesced operation of the preceding calls with the same number."""

UNEVEN_LISTS = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
"""Ends a batch that is one list operation, which the backend executed piece by piece."""

BATCH_ENDS = (COALESCED, *UNEVEN_LISTS)
"""Recorders' names of the entry that ends a batch. A column of batch ends holds an index into it plus 1; 0: none."""

HOOK = "c10d"
"""The backend in the names of calls that torch 2.14's ``FlightRecorderHook`` recorded.

It sets ``retired`` when the call has been issued, and numbers a group's calls from when it was attached.
"""

TORCH_NAMES = {
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "monitored_barrier": "barrier",
    "new_group": "barrier",
    "split_group": "barrier",
    "destroy_process_group": "barrier",
    "abort_process_group": "barrier",
}
"""`torch.distributed`'s name -> what torch's flight-recorder analyzer (2.13) calls it, where that differs.

all_to_all_single: as ProcessGroupNCCL records it; under its own name the analyzer reports uneven splits as a fault.
"""

_P2P = re.compile(r"(send|recv)\s+(\d+|\?)\s*(->|<-)\s*(\d+|\?)$")


class Name(NamedTuple):
    """A recorder's ``profiling_name``, parsed.

    Attributes:
        backend: ``""`` if the name has none.
        operation: `torch.distributed`'s name; the recorder's if the spelling is unknown.
        raw: the recorder's spelling without the backend.
        source, destination: ranks within the process group, of a send or receive; None: not recorded.
        any_source: a receive that accepts any sender.
    """

    backend: str
    operation: str
    raw: str
    source: int | None = None
    destination: int | None = None
    any_source: bool = False


def coalesced(name: Name, ins: Sizes, outs: Sizes) -> tuple[str, Sizes, Sizes]:
    """The operation and the sizes of a call, where the recorder's name does not say that it is a coalesced one.

    torch 2.14's hook calls an all_gather of several tensors ``allgather``, as it does that of one: with an output for
    each (`all_gather_into_tensor_coalesced`), or a list for each (`all_gather_coalesced`). gloo's recorder writes one
    output for all of them, of which no size is that of a tensor. The same holds for reduce_scatter. Of operations
    whose pieces may have different sizes (``all_gather_v``) one tensor for the whole list says nothing of them.
    """
    operation = name.operation
    own, lists = (ins, outs) if operation == "all_gather" else (outs, ins)
    if operation not in ("all_gather", "reduce_scatter") or (len(own) < 2 and not name.raw.endswith("_v")):
        return operation, ins, outs
    if len(own) < 2:
        known = len(lists) > 1
    elif operation == "reduce_scatter":
        operation, known = "reduce_scatter_tensor_coalesced", len(lists) == len(own)
    else:
        known = len(lists) >= len(own)
        operation = "all_gather_into_tensor_coalesced" if len(lists) == len(own) else "all_gather_coalesced"
    if known:
        return operation, ins, outs
    return (operation, ins, ()) if name.operation == "all_gather" else (operation, (), outs)


def parse(profiling_name: str) -> Name:
    """Read ``"nccl:_all_gather_base"``, ``"gloo:send 0->1"``, ``"recv 1<-?"`` and the like. Never raises."""
    backend, colon, raw = profiling_name.partition(":")
    if not colon:
        backend, raw = "", profiling_name
    if raw not in OPERATIONS and ":" in raw:
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
    return Name(backend, OPERATIONS.get(raw, raw), raw, any_source=any_source)
