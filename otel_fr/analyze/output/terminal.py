"""The result on a terminal: coloured, with a table of the ranks' progress; and a progress bar for long loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.output import overview
from otel_fr.analyze.output.overview import View, clean
from otel_fr.analyze.output.text import evidence_lines, verdict_lines
from otel_fr.presentation import count_text, rank_list

_STYLES = {
    "verdict": "bold red",
    "healthy": "bold green",
    "undecided": "bold yellow",
    "culprit": "red",
    "waiting": "yellow",
    "value": "magenta",
    "title": "bold",
    "stack": "dim",
}
_MAX_ROWS = 20


def show(analysis: Analysis, view: View, console: Console | None = None) -> None:
    """Print the result to the terminal. rich honours ``NO_COLOR``."""
    console = console or Console(soft_wrap=True, highlight=False)
    for style, text in verdict_lines(analysis, view):
        console.print(Text(text, _STYLES.get(style, "")))
    # A column is about as wide as its numbers. Longer titles are wrapped.
    grid = overview.grid(analysis, view, max((console.width - 26) // 20, 2))
    if grid.columns and grid.rows:
        console.print()
        console.print(_table(grid), soft_wrap=False)
        if len(grid.rows) > _MAX_ROWS:
            more = count_text(len(grid.rows) - _MAX_ROWS, "more row")
            console.print(Text(f"  and {more} (--selected-ranks shows any)", "dim"))
        if grid.left_out:
            more = count_text(grid.left_out, "more column")
            console.print(Text(f"  and {more} (--pg-filters shows any group; so does --format html)", "dim"))
    for style, text in evidence_lines(analysis, view):
        console.print(Text(text, _STYLES.get(style, "")))


def _table(grid: overview.Grid) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        title="Collectives completed/enqueued, by process group",
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("ranks", overflow="fold")
    table.add_column("")
    for column in grid.columns:
        table.add_column(Text(clean(column)), justify="right", overflow="fold")
    for row in grid.rows[:_MAX_ROWS]:
        style = _STYLES.get(row.role, "")
        who = rank_list(row.ranks)
        cells = [_cell(of) for of in row.cells]
        table.add_row(Text(who, style), Text(row.role or "", style), *cells)
    return table


def _cell(cells: tuple[overview.Cell, ...]) -> Text:
    text = Text()
    for shown, behind in dict.fromkeys((cell.text, cell.behind > 0) for cell in cells):
        text.append(", " if text else "").append(shown, "bold red" if behind else "")
    return text


@contextmanager
def loading() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error while files are read."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
