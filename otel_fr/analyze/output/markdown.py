"""``--format markdown``: for issues and chats (GitHub-flavoured). Text from files is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tabulate import tabulate

from otel_fr._version import __version__
from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.overview import MAX_FOLLOWED, MAX_LISTED, View, clean
from otel_fr.match import Finding
from otel_fr.presentation import ranks_text

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&])")
_BACKTICKS = re.compile(r"`+")
_MAX_STACK_LINES = 40
_MAX_COLUMNS = 6


def to_markdown(analysis: Analysis, view: View) -> str:
    """The verdict as a heading, the evidence as lists and tables."""
    lines = [f"### {escape(_heading(analysis))}", ""]
    causes = overview.causes(analysis)
    if not causes:
        lines += [escape(overview.verdict(analysis)), ""]
    for number, cause in enumerate(causes[: view.cap], 1):
        if len(causes) > 1:
            lines += [f"#### {number} of {len(causes)}: {escape(cause.category.value)}", ""]
        lines += _finding(cause, analysis, view)
    if len(causes) > view.cap:
        lines += [f"and {len(causes) - view.cap} more faults", ""]
    lines += _progress(analysis, view)
    lines += _list("Not known", overview.undecided(analysis, view))
    lines += _list("Files", overview.file_lines(analysis, view))
    lines += _list("Files that were not used", [f"{problem.path}: {problem.text}" for problem in analysis.problems])
    return "\n".join(lines) + f"\nMade by otel-fr {__version__} (`otel-fr analyze --format markdown`).\n"


def escape(text: str) -> str:
    """Text that Markdown and HTML show unchanged, without links or mentions."""
    return _SPECIAL.sub(r"\\\1", clean(text)).replace("@", "@\u2060").replace("://", ":\u2060//")


def code(text: str) -> str:
    """A code span, also within a table."""
    line = clean(text).replace("|", "\\|")
    mark = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    return f"{mark} {line} {mark}" if "`" in line else f"{mark}{line}{mark}"


def _fence(lines: Iterable[str]) -> list[str]:
    shown = [clean(line) for line in lines]
    mark = "`" * max(3, 1 + max((len(run) for line in shown for run in _BACKTICKS.findall(line)), default=0))
    return [mark, *shown, mark]


def _heading(analysis: Analysis) -> str:
    causes = overview.causes(analysis)
    if not causes:
        return "No fault found" if analysis.run is not None else "No flight-recorder file could be read"
    culprits = {rank for cause in causes for rank in cause.culprit_ranks}
    names = ", ".join(dict.fromkeys(cause.category.value for cause in causes))
    return f"{names}: {ranks_text(culprits)}" if culprits else names


def _finding(finding: Finding, analysis: Analysis, view: View) -> list[str]:
    lines = [f"**{escape(finding.summary)}**", ""]
    shown = overview.facts(finding)
    lines += [f"- {word.replace('_', ' ')}: {code(text)}" for word, text in shown[: 2 * MAX_LISTED]]
    lines.append("")
    for rank, stack in sorted(finding.stacks.items())[:MAX_LISTED]:
        text = stack.strip().splitlines()
        lines += ["<details><summary>stack of rank " + str(rank) + "</summary>", ""]
        lines += [*_fence(text if view.verbose else text[:_MAX_STACK_LINES]), "", "</details>", ""]
    if view.stacks:
        for ranks, frames in overview.call_stacks(analysis, finding)[:MAX_LISTED]:
            lines += [f"Call stack of {ranks_text(ranks)}, innermost first:", "", *_fence(frames), ""]
    followed = overview.consequences(analysis, finding)
    return lines + _list("Consequences", [consequence.summary for consequence in followed], MAX_FOLLOWED)


def _progress(analysis: Analysis, view: View) -> list[str]:
    grid = overview.grid(analysis, view, _MAX_COLUMNS)
    if not grid.columns or not grid.rows:
        return []
    rows = []
    for row in grid.rows[:MAX_LISTED]:
        texts = [", ".join(dict.fromkeys(cell.text for cell in of)) for of in row.cells]
        behind = [any(cell.behind for cell in of) for of in row.cells]
        cells = [f"**{text}**" if late else text for text, late in zip(texts, behind, strict=True)]
        who = ranks_text(row.ranks)
        rows.append([f"**{who}**" if row.role == "culprit" else who, row.role, *cells])
    headers = ["ranks", "", *map(escape, grid.columns)]
    table = tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
    more = [f"and {len(grid.rows) - MAX_LISTED} more rows", ""] if len(grid.rows) > MAX_LISTED else []
    more += [f"and {grid.left_out} more groups (or kinds of group)", ""] if grid.left_out else []
    return [
        "Collectives completed/enqueued, and how many fewer enqueued than on the member that is furthest ahead:",
        "",
        table,
        "",
        *more,
    ]


def _list(title: str, items: list[str], limit: int = MAX_LISTED) -> list[str]:
    if not items:
        return []
    more = [f"- and {len(items) - limit} more"] if len(items) > limit else []
    return [f"{title}:", "", *(f"- {escape(item)}" for item in items[:limit]), *more, ""]
