"""``--format html``: one self-contained page. All text from the files is escaped or drawn as text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

from otel_fr._version import __version__
from otel_fr.analyze.analysis import FAULT, HEALTHY, UNDECIDED, UNUSABLE, Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.overview import MAX_LISTED, View, clean
from otel_fr.analyze.output.timeline import timeline
from otel_fr.incident import timestamp
from otel_fr.match import Finding
from otel_fr.presentation import count_text, ranks_text

MAX_ROWS = 300
"""Rows of the table of ranks. Ranks with equal progress share a row."""


def to_html(analysis: Analysis, view: View) -> str:
    """The HTML document. Without JavaScript only the timeline is missing."""
    script, style = _file("page.js"), _file("page.css")
    state = {HEALTHY: "healthy", FAULT: "fault", UNUSABLE: "unusable", UNDECIDED: "undecided"}[analysis.status]
    causes = overview.causes(analysis)
    body = [
        f'<header class="{state}"><h1>{_text(overview.verdict(analysis))}</h1>',
        f"<p>{_text(_about(analysis))}</p></header><main>",
    ]
    body += [_finding(number, cause, analysis, view) for number, cause in enumerate(causes[: view.cap], 1)]
    if len(causes) > view.cap:
        body.append(f"<p>and {count_text(len(causes) - view.cap, 'more fault')}</p>")
    for title, items in overview.open_sections(analysis):
        body.append(f'<section class="finding"><h2>{title}</h2>{_items(items[:MAX_LISTED])}</section>')
    if analysis.run is not None:
        body += [_timeline(analysis, view), _grid(analysis, view)]
    body += [_list(title, items) for title, items in overview.evidence(analysis, view)]
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{_text(overview.short_verdict(analysis))} - otel-fr</title><style>{style}</style></head>\n<body>"
        + "\n".join(part for part in body if part)
        + f"</main><footer>otel-fr {_text(__version__)}</footer>\n<script>{script}</script></body></html>\n"
    )


def _text(value: str) -> str:
    return escape(clean(value))


@cache
def _file(name: str) -> str:
    return files("otel_fr.analyze.output").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _about(analysis: Analysis) -> str:
    run = analysis.run
    parts = [analysis.path]
    if run is not None:
        parts += [f"job {run.job} attempt {run.attempt}"] if run.job else []
        counts = ((run.dumps, "file"), (analysis.ranks, "rank"), (analysis.groups, "process group"))
        parts.append(", ".join(count_text(len(counted), noun) for counted, noun in counts))
        if run.written_at is not None:
            parts.append(f"written {timestamp(run.written_at)}")
    return " · ".join([*parts, f"analysed {timestamp(analysis.made_at)}"])


def _finding(number: int, finding: Finding, analysis: Analysis, view: View) -> str:
    position = f"{number} of {len(overview.causes(analysis))}"
    parts = [f'<section class="finding"><h2><span>{_text(finding.category.value)}</span> {position}</h2>']
    parts.append(f"<p>{_text(overview.told(finding))}</p>")
    parts += [f"<p>{_text('; '.join(finding.details))}</p>"] if finding.details else []
    parts.append("<dl>")
    for word, text in overview.facts(finding)[: 2 * MAX_LISTED]:
        parts.append(f'<dt>{_text(word.replace("_", " "))}</dt><dd class="{_text(word)}">{_text(text)}</dd>')
    parts.append("</dl>")
    for rank, stack in sorted(finding.stacks.items())[:MAX_LISTED]:
        lines = "\n".join(_text(line) for line in stack.strip().splitlines())
        parts.append(f"<details open><summary>stack of rank {rank}</summary><pre>{lines}</pre></details>")
    for place in finding.stack_groups[:MAX_LISTED]:
        lines = "\n".join(map(_text, place.frames))
        parts.append(
            f"<details><summary>{_text(overview.place_title(place.ranks))}</summary><pre>{lines}</pre></details>"
        )
    if view.stacks:
        for ranks, frames in overview.call_stacks(analysis, finding)[:MAX_LISTED]:
            lines = "\n".join(map(_text, frames))
            who = _text(ranks_text(ranks))
            parts.append(f"<details><summary>call stack of {who}</summary><pre>{lines}</pre></details>")
    followed = overview.consequences(analysis, finding)
    if followed:
        summary = f"Consequences: {len(followed)}"
        items = _items([consequence.summary for consequence in followed])
        parts.append(f"<details><summary>{summary}</summary>{items}</details>")
    return "".join(parts) + "</section>"


def _timeline(analysis: Analysis, view: View) -> str:
    # "<" could end the script element. All other characters of JSON are safe here.
    data = json.dumps(timeline(analysis, view), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<section id="timeline"><h2>The last calls of each rank</h2>'
        '<p class="help">Wheel: zoom; over the ranks: scroll. Drag: move. Keys: arrows choose a call, + and - zoom,'
        " [ and ] move, c next culprit, w next waiting rank, t time or order, 0 everything.</p>"
        '<div class="controls"><label><input type="radio" name="axis" value="order" checked> in the order of the'
        ' collectives</label> <label><input type="radio" name="axis" value="time"> in time, ranks aligned by the'
        ' collectives they share</label> <span id="legend"></span></div>'
        '<canvas id="chart" tabindex="0" role="application" aria-label="Timeline of the last calls of each rank"'
        ' aria-describedby="details"></canvas><div id="details" role="status" aria-live="polite"></div>'
        "<noscript>The timeline needs JavaScript; the rest of the page does not.</noscript>"
        f'</section><script type="application/json" id="data">{data}</script>'
    )


def _grid(analysis: Analysis, view: View) -> str:
    grid = overview.grid(analysis, view)
    if not grid.columns or not grid.rows:
        return ""
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in grid.columns)
    rows = []
    for row in grid.rows[:MAX_ROWS]:
        cells = []
        for of in row.cells:
            shown = dict.fromkeys((cell.text, cell.behind > 0) for cell in of)
            cells.append("<td>" + ", ".join(f"<b>{text}</b>" if late else text for text, late in shown) + "</td>")
        who = f'<th scope="row">{_text(ranks_text(row.ranks))}</th>'
        rows.append(f'<tr class="{row.role}">{who}<td>{row.role}</td><td>{_text(row.how)}</td>{"".join(cells)}</tr>')
    more = f"<p>and {count_text(len(grid.rows) - MAX_ROWS, 'more row')}</p>" if len(grid.rows) > MAX_ROWS else ""
    more += f"<p>and {count_text(grid.left_out, 'more column')}</p>" if grid.left_out else ""
    return (
        "<section><h2>Progress of the ranks</h2><p>Collectives completed/enqueued in each process group, and how many"
        " fewer than the furthest member. Ranks with the same progress share a row.</p>"
        '<div class="scroll"><table><thead>'
        f'<tr><th scope="col">ranks</th><th></th><th scope="col">how</th>{head}</tr></thead><tbody>{"".join(rows)}'
        f"</tbody></table></div>{more}</section>"
    )


def _items(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"


def _list(title: str, items: list[str]) -> str:
    if not items:
        return ""
    shown = _items(items[: 5 * MAX_LISTED])
    more = f"<p>and {len(items) - 5 * MAX_LISTED} more</p>" if len(items) > 5 * MAX_LISTED else ""
    return f"<section><details><summary>{title}: {len(items)}</summary>{shown}{more}</details></section>"
