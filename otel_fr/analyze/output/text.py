"""The result as text for users and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from otel_fr.analyze.analysis import FAULT, HEALTHY, UNDECIDED, UNUSABLE, Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.beside import comparison, comparison_json
from otel_fr.analyze.output.beside import to_json as performance_json
from otel_fr.analyze.output.overview import MAX_FOLLOWED, MAX_LISTED, View, clean
from otel_fr.dumps.model import Dump
from otel_fr.incident import timestamp
from otel_fr.match import Finding, Rank
from otel_fr.presentation import collective_text, count_text, ranks_by_text, ranks_text

_VERDICTS = {HEALTHY: "no_fault", FAULT: "fault", UNUSABLE: "no_file", UNDECIDED: "undecided"}
"""``verdict`` in the JSON output, by `Analysis.status`."""

_MAX_STACK_LINES = 40
_MAX_APART = 8
"""Most ranks whose values have a line each. If there are more ranks, each value has a line."""

Line = tuple[str, str]
"""(style, text). The style is "", verdict, healthy, undecided, culprit, waiting, value, title or stack."""


# JSON.


def to_json(analysis: Analysis, other: Analysis | None = None) -> str:
    """``{"verdict": ..., "incidents": [...], "open_calls": ..., "ranks": [...], "files": [...], ...}``.

    Args:
        other: a run whose performance is compared with this one's.
    """
    run = analysis.run
    value = {
        "verdict": _VERDICTS[analysis.status],
        "summary": overview.verdict(analysis),
        "incidents": analysis.incidents,
        "older_incidents": analysis.older_incidents,
        "open_calls": None if analysis.open_calls is None else dataclasses.asdict(analysis.open_calls),
        "ranks": [_rank_dict(rank) for rank in analysis.ranks.values()],
        "files": [] if run is None else [_file_dict(dump) for dump in run.dumps],
        "problems": [{"path": problem.path, "problem": problem.text} for problem in analysis.problems],
        "undecided": analysis.undecided,
        "device_durations": {
            "calls": [one.to_json() for one in analysis.device_durations.summary],
            "notes": analysis.device_durations.notes,
        },
        "nccl_ras": analysis.ras_lines,
        "performance": performance_json(analysis.performance),
        "against": None if other is None else comparison_json(analysis, other),
        "run": None if run is None else {"job": run.job, "attempt": run.attempt, "run_id": run.run_id},
    }
    return json.dumps(value, indent=1)


def _rank_dict(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "ending": rank.ending.value,
        "signal": rank.signal,
        "exit_code": rank.exit_code,
        "kill_reason": rank.kill_reason or None,
        "exception": rank.exception or None,
        "thread_exceptions": [item._asdict() for item in rank.thread_exceptions],
        "site": rank.exception_site or rank.site or None,
        "python_blocked": rank.python_blocked,
        "doing": rank.doing or None,
        "file": rank.file or None,
        "groups": {
            id_: {
                "enqueued": progress.enqueued,
                "completed": progress.completed,
                "first_recorded": progress.first_recorded,
            }
            for id_, progress in rank.progress.items()
        },
    }


def _file_dict(dump: Dump) -> dict[str, Any]:
    written = dump.integer("written_at")
    return {
        "path": dump.path,
        "rank": dump.rank,
        "source": dump.source,
        "host": dump.text("host") or None,
        "pid": dump.integer("pid"),
        "local_rank": dump.integer("local_rank"),
        "reason": dump.text("reason") or None,
        "written_at": None if written is None else timestamp(written / 1e9),
        "entries": len(dump.entries),
    }


# Text.


def to_text(analysis: Analysis, view: View | None = None) -> str:
    """The verdict, then the evidence. Control characters from files are escaped."""
    view = view or View()
    return "".join(f"{text}\n" for _, text in verdict_lines(analysis, view) + evidence_lines(analysis, view))


def against_text(analysis: Analysis, other: Analysis) -> str:
    """The comparison of a run's performance with another run's."""
    lines = _section(f"Against {other.path}", comparison(analysis, other), View())
    return "".join(f"{text}\n" for _, text in _clean(lines))


def verdict_lines(analysis: Analysis, view: View) -> list[Line]:
    """The lines of the verdict: the faults, that there is none, or what is undecided."""
    if analysis.findings:
        return _clean(_causes(analysis, view))
    style = {HEALTHY: "healthy", UNDECIDED: "undecided"}.get(analysis.status, "verdict")
    lines = [(style, overview.verdict(analysis))]
    for title, items in overview.open_sections(analysis):
        lines += _items(title, items, view, "  ", MAX_FOLLOWED)
    return _clean(lines)


def evidence_lines(analysis: Analysis, view: View) -> list[Line]:
    """The lines of the evidence: the files, what they do not show, and files that were not used."""
    sections = overview.evidence(analysis, view)
    return _clean([line for title, items in sections for line in _section(title, items, view)])


def _clean(lines: list[Line]) -> list[Line]:
    return [(style, clean(text)) for style, text in lines]


def _causes(analysis: Analysis, view: View) -> list[Line]:
    causes = overview.causes(analysis)
    lines: list[Line] = []
    for number, cause in enumerate(causes[: view.cap], 1):
        if number > 1:
            lines.append(("", ""))
        if len(causes) > 1:
            lines.append(("title", f"{number} of {len(causes)}:"))
        lines.extend(_finding(cause, analysis, view))
        followed = [finding.summary for finding in overview.consequences(analysis, cause)]
        lines.extend(_items("Consequences", followed, view, "  ", MAX_FOLLOWED))
    if len(causes) > view.cap:
        lines += [("", ""), ("", f"and {count_text(len(causes) - view.cap, 'more fault')} (--mismatch_cap shows more)")]
    return lines


def _finding(finding: Finding, analysis: Analysis, view: View) -> list[Line]:
    lines = [("verdict", overview.headline(finding)), *(("", f"  {text}") for text in finding.details)]
    group = finding.group
    if group is not None:
        where = f"group {overview.title(group)}, {ranks_text(group.ranks)}"
        lines.append(("", f"  {collective_text(finding.operation, finding.sequence_id)} of {where}"))
    apart = [([rank], value) for rank, value in sorted(finding.values.items())]
    field = f"{finding.field} = " if finding.field else ""
    for members, value in apart if len(apart) <= _MAX_APART else overview.values(finding)[:MAX_LISTED]:
        lines.append(("value", f"  {ranks_text(members)}: {field}{value}"))
    for word, ranks in (("culprit", finding.culprit_ranks), ("waiting", finding.waiting_ranks)):
        by_site = ranks_by_text((rank, overview.where(finding, rank)) for rank in ranks)
        lines.extend((word, f"  {word} {ranks_text(of)}: {site}") for site, of in list(by_site.items())[:20])
    for rank, stack in sorted(finding.stacks.items())[:MAX_LISTED]:
        text = stack.strip().splitlines()
        lines.append(("title", f"  stack of rank {rank}:"))
        limit = len(text) if view.verbose else _MAX_STACK_LINES
        lines.extend(("stack", f"    {line}") for line in text[:limit])
        if len(text) > limit:
            lines.append(
                ("stack", f"    ({count_text(len(text) - limit, 'more line')} in {analysis.ranks[rank].file})")
            )
    for place in finding.stack_groups[:MAX_LISTED]:
        lines.append(("title", f"  {overview.place_title(place.ranks)}:"))
        kept = place.frames if view.verbose else place.frames[-overview.MAX_PLACE_FRAMES :]
        lines.extend(("stack", f"    {frame}") for frame in kept)
    if view.stacks:
        for alike, frames in overview.call_stacks(analysis, finding)[:MAX_LISTED]:
            lines.append(("title", f"  call stack of {ranks_text(alike)}, innermost first:"))
            lines.extend(("stack", f"    {frame}") for frame in frames)
    return lines


def _section(title: str, items: Sequence[str], view: View) -> list[Line]:
    return [("", ""), *_items(title, items, view)] if items else []


def _items(title: str, items: Sequence[str], view: View, indent: str = "", limit: int = MAX_LISTED) -> list[Line]:
    if not items:
        return []
    limit = len(items) if view.verbose else limit
    lines = [("title", f"{indent}{title}:"), *(("", f"{indent}  {item}") for item in items[:limit])]
    if len(items) > limit:
        lines.append(("", f"{indent}  and {len(items) - limit} more (-v shows all)"))
    return lines
