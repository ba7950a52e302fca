"""An analysis at a prompt (one screen of text) and in a cell of a notebook (HTML without script)."""

from __future__ import annotations

from html import escape

from otel_fr.analyze.analysis import FAULT, HEALTHY, UNDECIDED, UNUSABLE, Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.overview import View, clean
from otel_fr.presentation import count_text, ranks_text

MAX_LINES = 20
"""Lines of a screen. A terminal has 24."""
MAX_WIDTH = 160
"""Characters of a line. A longer line is cut and ends with dots."""
MAX_CAUSES = 5
MAX_ROWS = 20
"""Rows of the table of ranks."""

_COLOURS = {HEALTHY: "#1a7f37", FAULT: "#b42318", UNUSABLE: "#b54708", UNDECIDED: "#b54708"}
_HINT = "incidents, collectives, ranks, groups, to_pandas(); otel-fr analyze prints all of it"


def to_screen(analysis: Analysis) -> str:
    """At most `MAX_LINES` lines of at most `MAX_WIDTH` characters, without control characters."""
    lines = [f"otel-fr analysis of {analysis.path}", *_files(analysis), ""]
    causes = overview.causes(analysis)
    if not causes:
        lines.append(overview.verdict(analysis))
        lines += [f"  {title}: {item}" for title, items in overview.open_sections(analysis) for item in items[:3]]
    for cause in causes[:MAX_CAUSES]:
        lines.append(overview.headline(cause))
        where = ((rank, overview.where(cause, rank)) for rank in cause.culprit_ranks[:2])
        lines += [f"  culprit rank {rank}: {site}" for rank, site in where]
        followed = len(overview.consequences(analysis, cause))
        lines += [f"  {count_text(followed, 'consequence')}"] if followed else []
    if len(causes) > MAX_CAUSES:
        lines.append(f"and {count_text(len(causes) - MAX_CAUSES, 'more fault')}")
    shown = [_cut(clean(line)) for line in lines]
    if len(shown) > MAX_LINES - 2:
        shown[MAX_LINES - 3 :] = ["..."]
    return "\n".join([*shown, "", f"({_HINT})"])


def to_cell(analysis: Analysis) -> str:
    """A fragment of HTML. All text from the files is escaped."""
    causes = overview.causes(analysis)
    colour = _COLOURS[analysis.status]
    parts = [f'<div><div style="border-left:4px solid {colour};padding-left:0.6em">']
    parts.append(f"<strong>{_text(overview.short_verdict(analysis))}</strong>")
    sentences = [overview.headline(cause) for cause in causes[:MAX_CAUSES]] or [overview.verdict(analysis)]
    parts += [f"<p>{_text(sentence)}</p>" for sentence in sentences]
    if len(causes) > MAX_CAUSES:
        parts.append(f"<p>and {count_text(len(causes) - MAX_CAUSES, 'more fault')}</p>")
    for title, items in overview.open_sections(analysis):
        parts.append(f"<p>{_text(title)}: {_text('; '.join(items[:3]))}</p>")
    parts.append("</div>" + "".join(f"<p>{_text(line)}</p>" for line in _files(analysis)))
    parts.append(_grid(analysis))
    return "".join(parts) + "</div>"


def _files(analysis: Analysis) -> list[str]:
    """Lines about the files that were read."""
    run = analysis.run
    if run is None:
        return []
    job = [f"job {run.job} attempt {run.attempt}"] if run.job else []
    calls = sum(len(dump.entries) for dump in run.dumps)
    counts = ((len(run.dumps), "file"), (len(analysis.ranks), "rank"), (len(analysis.groups), "process group"))
    texts = [*job, *(count_text(number, noun) for number, noun in counts), count_text(calls, "call")]
    unused = [f"{count_text(len(analysis.problems), 'file')} not used, see problems"] if analysis.problems else []
    return [", ".join([*texts, *unused])]


def _grid(analysis: Analysis) -> str:
    grid = overview.grid(analysis, View(), overview.MAX_COLUMNS)
    if not grid.rows or not grid.columns:
        return ""
    head = "".join(f"<th>{_text(title)}</th>" for title in ("ranks", "", "", *grid.columns))
    rows: list[str] = []
    for row in grid.rows[:MAX_ROWS]:
        cells = ["<td>" + _text(", ".join(dict.fromkeys(cell.text for cell in of))) + "</td>" for of in row.cells]
        who = f"<td>{_text(ranks_text(row.ranks))}</td><td>{_text(row.role)}</td><td>{_text(row.how)}</td>"
        rows.append(f"<tr>{who}{''.join(cells)}</tr>")
    more = f"<p>and {count_text(len(grid.rows) - MAX_ROWS, 'more row')}</p>" if len(grid.rows) > MAX_ROWS else ""
    caption = "<caption>collectives completed/enqueued in each group</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _text(value: str) -> str:
    return escape(_cut(clean(value), 4 * MAX_WIDTH))


def _cut(text: str, width: int = MAX_WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
