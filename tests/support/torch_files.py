"""Files in the format of PyTorch's recorder, made by hand."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECOND = 1_000_000_000
BEGIN = 1_790_000_000 * SECOND
OPEN: dict[str, Any] = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
"""Fields for `entry` of a call that has not ended."""

HOSTILE = "</script><script>document.title='owned'</script>\x1b[31m`|*@team* http://evil.example\n# \u202eevil \ud800"
PLAIN_ENTRY: dict[str, Any] = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "p2p_seq_id": 0,
    "op_id": 1,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1,
    "input_sizes": [[3]],
    "input_dtypes": ["Float"],
    "output_sizes": [[3]],
    "output_dtypes": ["Float"],
    "state": "completed",
    "retired": True,
    "timeout_ms": 1000,
    "is_p2p": False,
}
PLAIN_CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(record: int, operation: str, sequence_id: int, **fields: Any) -> dict[str, Any]:
    """Make a completed call of the default group on Floats of 4 x 4, except for ``fields``."""
    shapes = fields.pop("sizes", [[4, 4]])
    state = fields.setdefault("state", "completed")
    created = BEGIN + record * SECOND
    values: dict[str, Any] = {
        "frames": [
            {"filename": "/job/train.py", "line": 40 + record, "name": "step"},
            {"filename": "/job/train.py", "line": 9, "name": "main"},
        ],
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence_id,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": operation if ":" in operation else f"nccl:{operation}",
        "time_created_ns": created,
        "time_discovered_started_ns": created + 1000,
        "time_discovered_completed_ns": created + SECOND // 2 if state == "completed" else None,
        "input_sizes": shapes,
        "output_sizes": shapes,
        "input_dtypes": ["Float"] * len(shapes),
        "output_dtypes": ["Float"] * len(shapes),
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": operation.startswith(("send", "recv")),
    }
    return {**values, **fields}


def group(name: str, description: str, ranks: Sequence[int]) -> dict[str, str]:
    return {"name": name, "desc": description, "ranks": str(list(ranks))}


def write(folder: Path, ranks: dict[int, list[dict[str, Any]]], **groups: dict[str, str]) -> Path:
    """Write ``trace_RANK`` for each rank. ``groups``: `pg_config`; by default one group of all ranks with a file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = groups or {"0": group("0", "default_pg", sorted(ranks))}
    for rank, entries in ranks.items():
        known = {key: value for key, value in config.items() if rank in eval(value["ranks"])}
        (folder / f"trace_{rank}").write_bytes(
            pickle.dumps({"version": "2.10", "pg_config": known, "pg_status": {}, "entries": entries}, 2)
        )
    return folder


def one_missing(folder: Path, world_size: int = 4, culprit: int = 2, **more: Any) -> Path:
    """Write three all_reduces. The culprit never enqueues the third."""
    ranks = {}
    for rank in range(world_size):
        calls = [entry(number, "all_reduce", number + 1, **more) for number in range(2)]
        if rank != culprit:
            calls.append(entry(2, "all_reduce", 3, state="scheduled", **more))
        ranks[rank] = calls
    return write(folder, ranks)


def plain_file(**changes: Any) -> dict[str, Any]:
    """Return the content of a file with one call, and with no more than a reader needs."""
    return {"version": "2.10", "pg_config": PLAIN_CONFIG, "pg_status": {}, "entries": [PLAIN_ENTRY], **changes}


def hostile_folder(folder: Path) -> Path:
    """Write files in which all texts are hostile."""
    more: dict[str, Any] = {
        "frames": [{"filename": HOSTILE, "line": HOSTILE, "name": HOSTILE}],
        "process_group": ("0", HOSTILE),
        "input_dtypes": [HOSTILE],
    }
    one_missing(folder, **more)
    for path in folder.iterdir():
        data = pickle.loads(path.read_bytes())
        data["pg_config"]["0"]["desc"] = HOSTILE
        path.write_bytes(pickle.dumps(data, 2))
    return folder
