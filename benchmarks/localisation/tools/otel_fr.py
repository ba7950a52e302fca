"""otel-fr: live, on its own files, and on PyTorch's files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.localisation.answers import Answer, Kind, named
from benchmarks.localisation.running import Finished
from benchmarks.localisation.tools.tool import OnFiles
from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.verdicts import cause_incidents

STALL_SECONDS = 5.0
"""otel-fr's default."""
UNDECIDED = 3
"""Exit status of ``otel-fr analyze`` for an undecided verdict."""


class Live:
    """The collector's incidents, with all defaults."""

    name = "otel-fr, live"
    own_run_on: tuple[str, ...] = ()

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        running = stack.enter_context(torchrun.collector(folder / "collector"))
        return {**torchrun.endpoint(running, STALL_SECONDS), "OTEL_FR_JOB_ID": folder.name}

    def answer(self, job: Finished) -> Answer:
        text = (job.folder / "collector" / "incidents.jsonl").read_text()
        return from_changes([json.loads(line) for line in text.splitlines()])


class OwnFiles(OnFiles):
    """The files that the rank monitors wrote, read after the job."""

    name = "otel-fr, its files"
    folder = "dumps"

    def answer(self, job: Finished) -> Answer:
        folder = job.folder / self.folder
        if not folder.is_dir() or not any(folder.iterdir()):
            return Answer("silent", text="no file")
        done = otel_fr("analyze", folder, "--format", "json")
        return from_report(done.returncode, done.stdout, done.stderr)


class TorchFiles(OwnFiles):
    """The files of PyTorch's recorder."""

    name = "otel-fr, PyTorch's files"
    folder = "torch"


def from_changes(changes: Iterable[Mapping[str, Any]]) -> Answer:
    """Return the answer from all changes of incidents: the last culprits, their time, and ranks named before."""
    latest: dict[str, Mapping[str, Any]] = {}
    ever = set[int]()
    for change in changes:
        latest[change["id"]] = change
        if change["caused_by"] is None:
            ever.update(change["culprit_ranks"])
    causes = cause_incidents(latest.values())
    ranks = frozenset(_ranks(causes))
    at = max(
        (datetime.fromisoformat(one["detected_at"].replace("Z", "+00:00")).timestamp() for one in causes), default=None
    )
    kind: Kind = "ranks" if ranks else "undecided" if causes else "silent"
    return Answer(kind, ranks, _text(causes), at, frozenset(ever) - ranks)


def from_report(status: int, stdout: str, stderr: str = "") -> Answer:
    """Return the answer from ``otel-fr analyze --format json``."""
    if status == UNDECIDED:
        return Answer("undecided", text="undecided")
    if status not in (0, 1) or not stdout:  # Python's own exit status for an exception is 1, too
        return Answer("crash", text=stderr[-300:])
    causes = cause_incidents(json.loads(stdout)["incidents"])
    return named(_ranks(causes), _text(causes), otherwise="undecided" if causes else "silent")


def _ranks(causes: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    for one in causes:
        yield from one["culprit_ranks"]


def _text(causes: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(f"{one['category']} {one['culprit_ranks']}" for one in causes)
