"""Files in NCCL Inspector's documented format, made here because there is no NCCL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMUNICATOR = "0x7f8c496ae9f661"


def call(function: str, number: int, size: int, microseconds: float, **more: Any) -> dict[str, Any]:
    """Return the ``coll_perf`` line of one call."""
    seconds = microseconds / 1e6
    values = {
        "coll": function,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": microseconds,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(size / seconds / 1e9, 6),
        "coll_busbw_gbs": round(1.5 * size / seconds / 1e9, 6),
    }
    return {"coll_perf": values | more}


def marker(
    rank: int,
    size: int,
    host: str,
    pid: int,
    *,
    name: str = "unknown",
    **stats: int,
) -> dict[str, Any]:
    """Return the line before a communicator's calls, as of 4.3. Without ``dump_stats`` it is the header of 4.0."""
    return {
        "header": {"id": COMMUNICATOR, "comm_name": name, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.4",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_748_030_377_748_202,
            "hostname": host,
            "pid": pid,
        },
        "dump_stats": {"coll_records": 1, "coll_dropped_total": 0, "p2p_records": 0, "p2p_dropped_total": 0} | stats,
    }


def text(lines: Sequence[dict[str, Any]], *, repeats_header: bool = False) -> str:
    """Return the text of a file. ``repeats_header``: each line has the communicator, as before 4.3."""
    made = []
    header: dict[str, Any] = {}
    for line in lines:
        if "header" in line:
            header = {"header": line["header"], "metadata": line["metadata"]}
            if repeats_header:
                continue
        made.append(json.dumps(header | line if repeats_header else line))
    return "".join(f"{line}\n" for line in made)


def write(folder: Path, host: str, pid: int, lines: Sequence[dict[str, Any]], *, repeats_header: bool = False) -> Path:
    """Write the file of one process."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{host}-pid{pid}.log"
    path.write_text(text(lines, repeats_header=repeats_header), "utf-8")
    return path
