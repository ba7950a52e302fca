"""`otel-fr analyze` against PyTorch's `torchfrtrace`: wall time and peak memory of each command, and their ratios.

    python benchmarks/analyze.py [--sizes 8x2000 64x2000 64x10000 256x2000 1024x2000] [--limit 300] [--quick]

Each size is RANKSxENTRIES: NCCL-format files of a job with three kinds of process groups (all ranks, tensor and data
parallel), in which one rank does not join a collective near the end. Both commands judge the same files, one after the
other; a command that takes longer than ``--limit`` seconds is stopped. Memory is the sum of Pss (private memory and the
share of shared memory) over the command's processes. Exits with 1 if otel-fr does not name the rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

BIN = Path(sys.executable).parent
SIZES = ["8x2000", "64x2000", "64x10000", "256x2000", "1024x2000"]
QUICK = ["8x2000", "32x2000"]
TENSOR_PARALLEL = 8
CULPRIT = 5
START_NS = 1_750_000_000_000_000_000

FRAMES = [
    {"name": name, "filename": file, "line": line}
    for name, file, line in (
        ("all_reduce", "/venv/lib/torch/distributed/distributed_c10d.py", 2806),
        ("wrapper", "/venv/lib/torch/distributed/c10d_logger.py", 81),
        ("forward", "/job/layers.py", 311),
        ("step", "/job/train.py", 97),
        ("main", "/job/train.py", 140),
    )
]
CALLS = [
    *[("tp", "all_reduce", [[8, 1024]], [[8, 1024]], "BFloat16")] * 6,
    ("dp", "_reduce_scatter_base", [[8192, 0]], [[8192]], "Float"),
    ("dp", "_all_gather_base", [[8192]], [[8192, 0]], "Float"),
    ("default_pg", "broadcast", [[16]], [[16]], "Float"),
    ("default_pg", "all_reduce", [[1024]], [[1024]], "Float"),
]
"""One step of the simulated job: (kind of group, operation, input sizes, output sizes, dtype). 0: the group's size."""


def groups_of(rank: int, ranks: int) -> dict[str, tuple[str, list[int]]]:
    """Return kind -> (name, members) of the rank's groups."""
    first, place = rank - rank % TENSOR_PARALLEL, rank % TENSOR_PARALLEL
    return {
        "default_pg": ("0", list(range(ranks))),
        "tp": (str(1 + first // TENSOR_PARALLEL), list(range(first, min(first + TENSOR_PARALLEL, ranks)))),
        "dp": (str(1 + ranks // TENSOR_PARALLEL + place), list(range(place, ranks, TENSOR_PARALLEL))),
    }


def dump(rank: int, ranks: int, entries: int) -> dict[str, Any]:
    """Return one rank's file. The culprit's tensor-parallel group waits in its last call, the others one call later."""
    groups = groups_of(rank, ranks)
    # The last call that all ranks could enqueue is the last tensor-parallel call of a step.
    last = (entries - 2) // len(CALLS) * len(CALLS) - 5
    stands = last - (rank == CULPRIT) if CULPRIT in groups["tp"][1] else last + 1
    counts = dict.fromkeys(groups, 0)
    done = dict.fromkeys(groups, 0)
    found: list[dict[str, Any]] = []
    for record in range(stands + 1):
        kind, operation, inputs, outputs, dtype = CALLS[record % len(CALLS)]
        counts[kind] += 1
        completed = record < stands or rank == CULPRIT
        done[kind] += completed
        at = START_NS + record * 1_000_000 + rank * 1_000
        found.append(
            {
                "frames": FRAMES,
                "record_id": record,
                "pg_id": list(groups).index(kind),
                "process_group": (groups[kind][0], kind),
                "thread_name": "python",
                "thread_id": "23456244340032",
                "collective_seq_id": counts[kind],
                "p2p_seq_id": 0,
                "op_id": counts[kind],
                "profiling_name": f"nccl:{operation}",
                "time_created_ns": at,
                "input_sizes": [[number or len(groups[kind][1]) for number in shape] for shape in inputs],
                "input_dtypes": [dtype],
                "output_sizes": [[number or len(groups[kind][1]) for number in shape] for shape in outputs],
                "output_dtypes": [dtype],
                "state": "completed" if completed else "started",
                "time_discovered_started_ns": at + 1_000,
                "time_discovered_completed_ns": at + 2_000 if completed else None,
                "retired": completed,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {name: {"name": name, "desc": kind, "ranks": str(of)} for kind, (name, of) in groups.items()},
        "pg_status": {
            str(number): {
                "last_enqueued_collective": counts[kind],
                "last_started_collective": counts[kind],
                "last_completed_collective": done[kind],
            }
            for number, kind in enumerate(groups)
        },
        "entries": found,
    }


def write(folder: Path, ranks: int, entries: int) -> int:
    """Write all ranks' files. Returns the number of calls in them."""
    calls = 0
    for rank in range(ranks):
        data = dump(rank, ranks, entries)
        calls += len(data["entries"])
        with (folder / f"nccl_trace_rank_{rank}").open("wb") as file:
            pickle.dump(data, file, protocol=2)
    return calls


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            found.extend(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
    return found


def memory(pid: int) -> int:
    """Return the bytes that a process and its descendants use now."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return total


class Cost(NamedTuple):
    """The cost of one command. ``ended``: it ended before the limit and without an error."""

    ended: bool
    seconds: float
    cpu_seconds: float
    peak: int
    printed: str

    def __str__(self) -> str:
        duration = f"{self.seconds:.2f} s" if self.ended else f"not ended in {self.seconds:.0f} s"
        return f"{duration} ({self.cpu_seconds:.1f} s of CPU, {self.peak / 2**20:.0f} MiB)"


def measure(command: list[str], limit: float) -> Cost:
    """Run a command until it ends, for at most ``limit`` seconds."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        peak, killed = 0, False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            seconds = time.perf_counter() - began
            if pid:
                break
            peak = max(peak, memory(process.pid))
            if seconds > limit and not killed:
                os.kill(process.pid, signal.SIGKILL)  # not process.kill(), which would take the exit status
                killed = True
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        cpu = usage.ru_utime + usage.ru_stime
        return Cost(process.returncode in (0, 1), seconds, cpu, peak, out.read())


def names_the_culprit(printed: str) -> bool:
    """Return True if the report accuses the rank that did not join, and no other."""
    with contextlib.suppress(ValueError):
        causes = [found for found in json.loads(printed)["incidents"] if found["caused_by"] is None]
        return [found["culprit_ranks"] for found in causes] == [[CULPRIT]]
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", metavar="RANKSxENTRIES", default=SIZES)
    parser.add_argument("--quick", action="store_true", help=f"only {' '.join(QUICK)}")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one command may take")
    args = parser.parse_args()
    peer = BIN / "torchfrtrace"
    wrong = 0
    for size in QUICK if args.quick else args.sizes:
        ranks, entries = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as name:
            calls = write(Path(name), ranks, entries)
            print(f"{ranks} ranks x {entries} entries, {calls} calls", flush=True)
            ours = measure([str(BIN / "otel-fr"), "analyze", name, "--format", "json"], args.limit)
            print(f"  otel-fr analyze  {ours}; {ours.cpu_seconds / calls * 1e6:.1f} us of CPU a call", flush=True)
            if not names_the_culprit(ours.printed):
                print(f"  WRONG: it does not name rank {CULPRIT}")
                wrong += 1
            if peer.exists():
                theirs = measure([str(peer), name, "-p", "nccl_trace_rank_"], args.limit)
                more = "" if theirs.ended else "more than "
                wall, cpu = theirs.seconds / ours.seconds, theirs.cpu_seconds / ours.cpu_seconds
                print(f"  torchfrtrace     {theirs}")
                print(f"  ratio            {more}x{wall:.1f} of wall time, {more}x{cpu:.1f} of CPU", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
