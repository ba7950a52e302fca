"""A modelled job's files in the form of NCCL's recorder, without the calls that have completed."""

from __future__ import annotations

import pickle
from collections.abc import Container
from pathlib import Path
from typing import Any

from otel_fr.match import Group
from tests.support.device_model import Issued, Machine

_NAMES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "barrier": "all_reduce_barrier",
}
_BEGIN = 1_790_000_000_000_000_000
_FIRST = 90_000
"""Record id and sequence number of the call before the first one here."""


def write_files(
    folder: Path,
    machine: Machine,
    *,
    status: bool = True,
    absent: Container[int] = (),
) -> Path:
    """Write one file per rank, ``_dump_RANK``, as a job leaves them when its watchdog stops it.

    Args:
        status: with the last numbers of each group (``pg_status``).
        absent: ranks without a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    used = {op.group.id: op.group for program in machine.programs.values() for op in program}
    groups = sorted(used.values(), key=lambda group: int(group.name))  # the order of creation
    for rank in machine.programs:
        if rank not in absent:
            own = [group for group in groups if rank in group.ranks]
            data = nccl_file(machine, rank, own, status=status)
            (folder / f"_dump_{rank}").write_bytes(pickle.dumps(data, 2))
    return folder


def nccl_file(machine: Machine, rank: int, groups: list[Group], *, status: bool) -> dict[str, Any]:
    """Return the content of one rank's file, without the calls that have completed."""
    local = {group.id: number for number, group in enumerate(groups)}
    mine = machine.issued[rank]
    shown = [call for call in mine if not call.completed]
    data: dict[str, Any] = {
        "version": "2.9",
        "pg_config": {g.name: {"name": g.name, "desc": g.description, "ranks": str(list(g.ranks))} for g in groups},
        "entries": [_entry(rank, call, local[call.op.group.id]) for call in shown],
    }
    if status:
        data["pg_status"] = {}
        for group in groups:
            calls = [call for call in mine if call.op.group.id == group.id]
            data["pg_status"][str(local[group.id])] = {
                "last_enqueued_collective": _FIRST + max((c.number for c in calls), default=0),
                "last_started_collective": -1,
                "last_completed_collective": _FIRST + max((c.number for c in calls if c.completed), default=0),
            }
    return data


def _entry(rank: int, call: Issued, local: int) -> dict[str, Any]:
    group, signature = call.op.group, call.op.signature
    p2p = call.op.peer is not None
    name = _NAMES.get(signature.operation, signature.operation)
    if call.op.peer is not None:
        arrow = "->" if signature.operation == "send" else "<-"
        name = f"{name} {group.ranks.index(rank)}{arrow}{group.ranks.index(call.op.peer)}"
    created = _BEGIN + call.record * 1_000_000
    return {
        "record_id": _FIRST + call.record,
        "pg_id": local,
        "process_group": (group.name, group.description),
        "collective_seq_id": 0 if p2p else _FIRST + call.number,
        "p2p_seq_id": _FIRST + call.number if p2p else 0,
        "op_id": _FIRST + call.number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": created,
        "input_sizes": [list(shape) for shape in signature.input_sizes],
        "input_dtypes": list(signature.input_dtypes),
        "output_sizes": [list(shape) for shape in signature.output_sizes],
        "output_dtypes": list(signature.output_dtypes),
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": p2p,
    }
