"""The verdict for people (text) and for programs (JSON)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_fr.analyze.evidence import Run, build_runs
from otel_fr.dump.model import Dump, Problem
from otel_fr.dump.read import load_folder
from otel_fr.identity import encode_ranks
from otel_fr.incident import incident_dict, timestamp
from otel_fr.match import Ending, Finding, Rank, State, diagnose

HEALTHY, FAULT, UNUSABLE = 0, 1, 2
"""Exit statuses: nothing wrong is shown, a fault is shown, no file could be read."""

_MAX_STACK_LINES = 40
_MAX_LISTED = 20


@dataclass(slots=True)
class Report:
    """What the files of a folder say.

    Attributes:
        run: the run reported on; None: no file could be read. others: other runs with files in the folder.
        findings: causes first. undecided: what the files do not tell, as sentences.
    """

    path: str
    run: Run | None
    others: list[Run]
    findings: list[Finding]
    problems: list[Problem]
    made_at: float

    @property
    def status(self) -> int:
        """`HEALTHY`, `FAULT` or `UNUSABLE`."""
        if self.run is None:
            return UNUSABLE
        return FAULT if self.findings else HEALTHY


def analyze(path: Path | str, prefix: str | None = None, workers: int = 1) -> Report:
    """Read a folder (or one file) and judge the newest run in it. Never raises for what the files hold.

    Args:
        prefix: only files whose name begins with it.
        workers: processes that read large folders; 1: none but this one.
    """
    dumps, problems = load_folder(path, prefix, workers=workers)
    runs, more = build_runs(dumps)
    findings = diagnose(runs[0].evidence) if runs else []
    return Report(str(path), runs[0] if runs else None, runs[1:], findings, problems + more, time.time())


# JSON.


def to_json(report: Report) -> str:
    """``{"incidents": [...], "ranks": [...], "files": [...], "problems": [...], "undecided": [...]}``."""
    run = report.run
    value = {
        "incidents": _incidents(report),
        "ranks": [] if run is None else [_rank_dict(rank) for _, rank in sorted(run.evidence.ranks.items())],
        "files": [] if run is None else [_file_dict(dump) for dump in run.dumps],
        "problems": [{"path": problem.path, "problem": problem.text} for problem in report.problems],
        "undecided": [] if run is None else run.undecided,
        "run": None if run is None else {"job": run.job, "attempt": run.attempt, "run_id": run.run_id},
    }
    return json.dumps(value, indent=1)


def _incidents(report: Report) -> list[dict[str, object]]:
    run = report.run
    if run is None:
        return []
    return [
        incident_dict(
            finding,
            job=run.job,
            attempt=run.attempt,
            run_id=run.run_id,
            started_at=None if run.written_at is None or finding.age is None else run.written_at - finding.age,
            detected_at=report.made_at,
            state="firing",
        )
        for finding in report.findings
    ]


def _rank_dict(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "ending": rank.ending.value,
        "signal": rank.signal,
        "exit_code": rank.exit_code,
        "exception": rank.exception or None,
        "site": rank.exception_site or rank.site or None,
        "python_blocked": rank.python_blocked,
        "file": rank.file or None,
        "groups": {
            id_: {
                "enqueued": standing.enqueued,
                "completed": standing.completed,
                "first_recorded": standing.first_recorded,
            }
            for id_, standing in rank.standings.items()
        },
    }


def _file_dict(dump: Dump) -> dict[str, Any]:
    written = dump.integer("written_at")
    return {
        "path": dump.path,
        "rank": dump.rank,
        "source": dump.source,
        "host": dump.text("host") or None,
        "reason": dump.text("reason") or None,
        "written_at": None if written is None else timestamp(written / 1e9),
        "entries": len(dump.entries),
    }


# Text.


def to_text(report: Report) -> str:
    """The verdict first, then what it rests on."""
    lines: list[str] = []
    run = report.run
    if run is None:
        lines.append(f"No flight-recorder file in {report.path} could be read.")
    else:
        lines.extend(_verdict(report, run))
        lines.extend(_section("Files", [_file_text(dump, run) for dump in run.dumps]))
        lines.extend(_section("Not known", run.undecided))
    lines.extend(_section("Files that were not used", [f"{p.path}: {p.text}" for p in report.problems]))
    if report.others:
        names = [
            f"{other.job or 'unnamed job'} attempt {other.attempt}, {len(other.dumps)} files" for other in report.others
        ]
        lines.extend(_section("Other runs in this folder, not judged", names))
    return "\n".join(lines) + "\n"


def _verdict(report: Report, run: Run) -> list[str]:
    causes = [finding for finding in report.findings if finding.caused_by is None]
    if not report.findings:
        dumps = run.dumps
        calls = sum(len(dump.entries) for dump in dumps)
        verdict = f"No fault found in {calls} calls of {_ranks([dump.rank for dump in dumps])}."
        open_calls = sum(call.state is State.IN_FLIGHT for call in run.evidence.calls)
        return [
            f"{verdict} {open_calls} of them had not completed when the files were written." if open_calls else verdict
        ]
    lines: list[str] = []
    for number, cause in enumerate(causes, 1):
        if len(causes) > 1:
            lines.append(f"{number} of {len(causes)}:")
        lines.extend(_finding_text(cause, run))
        followed = [finding for finding in report.findings if finding.caused_by == cause.key]
        lines.extend(_section("What followed from it", [finding.summary for finding in followed], "  "))
        lines.append("")
    return lines[:-1]


def _finding_text(finding: Finding, run: Run) -> list[str]:
    lines = [f"{finding.category.value}: {finding.summary}"]
    group = finding.group
    if group is not None:
        where = f"group {group.description or group.name} ({group.name!r}), ranks {encode_ranks(group.ranks)}"
        number = "" if finding.sequence_id is None else f" number {finding.sequence_id}"
        lines.append(f"  {finding.operation}{number} of {where}")
    for rank, value in sorted(finding.values.items())[:_MAX_LISTED]:
        lines.append(f"  rank {rank}: {finding.field} = {value}")
    for title, ranks in (("culprit", finding.culprit_ranks), ("waiting", finding.waiting_ranks)):
        by_site: dict[str, list[int]] = {}
        for rank in ranks:
            by_site.setdefault(finding.call_sites.get(rank, "line of code not known"), []).append(rank)
        lines.extend(f"  {title} {_ranks(of)}: {site}" for site, of in list(by_site.items())[:_MAX_LISTED])
    for rank, stack in sorted(finding.stacks.items())[:_MAX_LISTED]:
        text = stack.strip().splitlines()
        lines.append(f"  stack of rank {rank}:")
        lines.extend(f"    {line}" for line in text[:_MAX_STACK_LINES])
        if len(text) > _MAX_STACK_LINES:
            lines.append(f"    ({len(text) - _MAX_STACK_LINES} more lines in {run.evidence.ranks[rank].file})")
    return lines


def _section(title: str, items: Sequence[str], indent: str = "") -> list[str]:
    if not items:
        return []
    shown = [f"{indent}  {item}" for item in items[:_MAX_LISTED]]
    if len(items) > _MAX_LISTED:
        shown.append(f"{indent}  and {len(items) - _MAX_LISTED} more")
    return [f"{indent}{title}:" if indent else f"\n{title}:", *shown]


def _file_text(dump: Dump, run: Run) -> str:
    rank = run.evidence.ranks[dump.rank]
    how = {
        Ending.RUNNING: "alive when it was written",
        Ending.CLEAN: "ended without an error",
        Ending.RAISED: f"raised {rank.exception}" if rank.exception else f"exited with code {rank.exit_code}",
        Ending.KILLED: f"killed by signal {rank.signal}",
        Ending.GONE: "ended, nobody saw how",
    }.get(rank.ending, "")
    if dump.source != "otel-fr":
        how = dump.source
    return f"rank {dump.rank}: {dump.path} ({len(dump.entries)} calls; {how})"


def _ranks(ranks: Sequence[int]) -> str:
    text = encode_ranks(sorted(ranks))
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
