"""All tools, and their answers about one job."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.localisation.answers import Answer, outcome
from benchmarks.localisation.catalogue import Program
from benchmarks.localisation.running import Finished, Setting, run
from benchmarks.localisation.tools.debug_server import DebugServer
from benchmarks.localisation.tools.nvrx import Nvrx
from benchmarks.localisation.tools.otel_fr import Live, OwnFiles, TorchFiles
from benchmarks.localisation.tools.tool import Tool
from benchmarks.localisation.tools.torchfrtrace import TorchFrTrace
from benchmarks.localisation.tools.watchdog import Watchdog
from benchmarks.localisation.tools.wrapper import Wrapper

TOOLS: tuple[Tool, ...] = (
    Live(),
    OwnFiles(),
    TorchFiles(),
    TorchFrTrace(),
    Nvrx(),
    DebugServer(),
    Watchdog(),
    Wrapper(),
)

Row = dict[str, Any]
"""One tool's answer about one job, as in the JSON file."""


def runs(tools: Sequence[Tool], setting: str) -> Iterator[list[Tool]]:
    """Yield the tools that share a run of each job, and then each tool that needs its own run."""
    together = [tool for tool in tools if not tool.own_run_on]
    yield from ([together] if together else [])
    yield from ([tool] for tool in tools if setting in tool.own_run_on)


def observe(program: Program, setting: Setting, tools: Sequence[Tool], keep: Path | None = None) -> list[Row]:
    """Run the job once, and ask all these tools about it. ``keep``: a folder for the job's files.

    Raises:
        NotStartedError: the job did not come to its fault.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{program.name}-"))
    try:
        with ExitStack() as stack:
            env: dict[str, str] = {}
            for tool in tools:
                env |= tool.prepare(folder, stack)
            job = run(program, setting, folder, env)
        return [row(job, tool, *_asked(job, tool)) for tool in tools]
    finally:
        if keep is not None:
            shutil.move(
                folder, keep / f"{setting.name}-{program.name}-{tools[0].name if tools[0].own_run_on else 'shared'}"
            )
        shutil.rmtree(folder, ignore_errors=True)


def ended_by(program: Program, setting: Setting, tool: Tool) -> Row:
    """Return the row of a tool that ended the job before its fault."""
    return row(Finished(program, setting, Path()), tool, Answer("crash", text="it ended the job before its fault"), 0.0)


def _asked(job: Finished, tool: Tool) -> tuple[Answer, float]:
    """Return the tool's answer, and the seconds that it took."""
    begun = time.monotonic()
    return tool.answer(job), time.monotonic() - begun


def row(job: Finished, tool: Tool, answer: Answer, thought: float) -> Row:
    """Return a row. ``thought``: seconds, added to the time of the last file if the answer has no time."""
    at = answer.at if answer.at is not None else (job.newest(getattr(tool, "folder", "torch")) or 0.0) + thought
    is_timed = answer.kind in ("ranks", "undecided") and job.fault_at is not None
    return {
        "backend": job.setting.name,
        "program": job.program.name,
        "kind": job.program.kind,
        "culprits": [sorted(ranks) for ranks in job.program.culprits],
        "world": job.program.world,
        "tool": tool.name,
        "outcome": outcome(job.program, answer),
        "ranks": sorted(answer.ranks),
        "strayed": sorted(answer.strayed),
        "seconds": round(at - job.fault_at, 1) if is_timed and job.fault_at is not None else None,
        "text": answer.text,
    }
