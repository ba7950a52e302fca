"""``torch.distributed.debug``: a server on rank 0 asks all ranks for PyTorch's records, and shows tables."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from benchmarks.localisation.answers import Answer, Kind, named
from benchmarks.localisation.running import ASK_AFTER, Finished

_TABLE = re.compile(r"--- Collectives ---\n.*\n((?:.*\n)*?)--- NCCL Calls ---")
_EXPECTED = re.compile(r"\{[\d, ]+\}")
_MISSING = re.compile(r"\{([\d, ]+)\}")
_DIFFERS = re.compile(r"(\d+): Collective\(")


class DebugServer:
    """The tables of its page ``/fr_trace``, from the files that it writes: ranks that are missing, and that differ.

    The answer is what a user reads who looks at the page at the time when PyTorch's files are asked for on gloo.
    """

    name = "torch.distributed.debug"
    own_run_on: tuple[str, ...] = ("nccl",)

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """The program starts the server."""
        return {"LOCALISATION_DEBUG_SERVER": "1", "OTEL_FR_ENABLED": "0"}

    def answer(self, job: Finished) -> Answer:
        written = sorted((path.stat().st_mtime, path) for path in (job.folder / "debug").glob("fr_trace_*"))
        shown = [(at, path) for at, path in written if job.fault_at is None or at >= job.fault_at]
        if not shown:
            kind: Kind = "crash" if "Failed to dump fr_trace" in job.output else "silent"
            return Answer(kind, text="it shows nothing")
        looked = (job.fault_at or shown[-1][0]) + (ASK_AFTER if job.fault_at else 0.0)
        at, path = next((one for one in shown if one[0] >= looked), shown[-1])
        return from_text(path.read_text(), at)


def from_text(text: str, at: float | None = None) -> Answer:
    """Return the answer from the tables."""
    rows = [row for table in _TABLE.findall(text) for row in table.splitlines()]
    beside = [_EXPECTED.sub("", row, count=1) for row in rows]
    ranks = {int(rank) for row in beside for found in _MISSING.findall(row) for rank in found.split(",")}
    ranks |= {int(rank) for row in beside for rank in _DIFFERS.findall(row)}
    return named(ranks, "; ".join(map(str.strip, rows))[:300], at)
