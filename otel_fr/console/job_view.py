"""Jobs as text for a terminal: the list of jobs, and one job in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from otel_fr.console.client import Advice, JobDetail, JobHead, LateRank
from otel_fr.console.incident_view import job_text
from otel_fr.console.rates_view import rates_cells, rates_lines, slowest_lines
from otel_fr.identity import decode_ranks
from otel_fr.incident import IncidentHead, unix
from otel_fr.presentation import (
    ago_text,
    collective_text,
    duration_text,
    group_name,
    overdue_text,
    rank_state_text,
    ranks_text,
)
from otel_fr.printable import one_line

COLORS = {
    "incident": "bold red",
    "slow": "bold yellow",
    "failed": "magenta",
    "silent": "yellow",
    "running": "green",
    "ended": "dim",
    "stopped": "dim",
    "replaced": "dim",
}
VERY_WIDE, WIDE, NARROW = 130, 100, 72
"""Widths of a terminal in characters. From `VERY_WIDE` on, the list of jobs has rates; from `WIDE` on, lag and late
ranks. Below `NARROW`, it lacks the ranks that do not run and the last report."""
RATES = ("COLL/S", "BUS", "WAIT")
GAP = 2
"""Spaces between two columns."""
MAX_RUN, MAX_HOSTS = 8, 3
"""Characters of a run's id, and number of hosts, that are shown to distinguish runs of the same name."""
MAX_GROUPS = 16
"""Most lines of a section. Further lines are only counted."""


def jobs_table(jobs: Sequence[JobHead], waiting: dict[tuple[str, str], float], width: int) -> Table:
    """One row for each job. ``waiting``: (job, run) -> seconds for which ranks wait because of an open incident.

    The job's name and the ranks that do not run are cut to the width that the other columns leave. If all ranks run,
    late ranks take that place. Runs of the same name and attempt show the beginning of their ids, and their hosts.
    """
    named = Counter(map(job_text, jobs))
    last = "LAST REPORT" if width >= WIDE else "HEARD"
    room = (VERY_WIDE, RATES), (WIDE, ("LAG", "LATE")), (NARROW, ("NOT RUNNING", last))
    columns = {name: [Text(name)] for name in ("JOB", "STATE", "RANKS", "NOT RUNNING", "WAITING")}
    columns |= {name: [Text(name)] for name in (*RATES, "LAG", "LATE", last)}
    for job in jobs:
        seconds = waiting.get((job["job"], job["run_id"]))
        world = "?" if job["world_size"] is None else str(job["world_size"])
        cells = (
            Text(job_text(job) + (f" ({_run_text(job)})" if named[job_text(job)] > 1 else "")),
            Text(job["state"], COLORS.get(job["state"], "")),
            Text(f"{job['ranks'].get('running', 0)}/{world}"),
            Text(_not_running(job["ranks"]) or "-"),
            Text("-" if seconds is None else duration_text(seconds)),
            *map(Text, rates_cells(job["rates"])),
            Text(str(job["lag"])),
            Text(_late(job["late"])),
            Text(_ago(job["last_heard_at"])),
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    hidden = {name for least, names in room for name in names if width < least}
    if NARROW <= width < WIDE and not _says(columns["NOT RUNNING"]) and _says(columns["LATE"]):
        hidden = {*hidden, "NOT RUNNING"} - {"LATE"}
    columns = {name: cells for name, cells in columns.items() if name not in hidden}
    widths = {name: max(cell.cell_len for cell in cells) for name, cells in columns.items()}
    _fit(widths, width - GAP * (len(columns) - 1))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for name in columns:
        side: Literal["left", "right"] = "left" if name in ("JOB", "STATE", "RANKS", "NOT RUNNING") else "right"
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=widths[name], justify=side)
    for row in zip(*(cells[1:] for cells in columns.values()), strict=True):
        table.add_row(*row)
    return table


def _run_text(job: JobHead) -> str:
    hosts = job["hosts"] or []
    return one_line(", ".join([job["run_id"][:MAX_RUN], *hosts[:MAX_HOSTS], *["..."] * (len(hosts) > MAX_HOSTS)]))


def _says(cells: Iterable[Text]) -> bool:
    """Return whether a column has a value below its head."""
    return any(cell.plain != "-" for cell in list(cells)[1:])


def _fit(widths: dict[str, int], width: int) -> None:
    """Narrow the columns whose texts may be cut until all columns fit. The job's name is cut last."""
    rest = width - sum(size for name, size in widths.items() if name not in ("JOB", "NOT RUNNING"))
    if "NOT RUNNING" in widths:
        least = min(widths["NOT RUNNING"], max(len("NOT RUNNING"), rest // 3))
        widths["NOT RUNNING"] = max(least, min(widths["NOT RUNNING"], rest - widths["JOB"]))
        rest -= widths["NOT RUNNING"]
    widths["JOB"] = max(1, min(widths["JOB"], rest))


def waiting_seconds(incidents: Iterable[IncidentHead]) -> dict[tuple[str, str], float]:
    """(job, run) -> seconds for which ranks have been waiting because of the run's oldest open incident."""
    found: dict[tuple[str, str], float] = {}
    now = datetime.now(tz=timezone.utc).timestamp()
    for one in incidents:
        since = unix(one["waiting_since"])
        if one["state"] == "firing" and since is not None:
            key = one["job"], one["run_id"]
            found[key] = max(found.get(key, 0.0), now - since)
    return found


def job_page(job: JobDetail, advice: Advice | None) -> Group:
    """One job without its incidents: advice, and ranks that wait, are overdue, are late or do not run."""
    rows = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, lines in _sections(job, advice):
        for number, line in enumerate(lines[:MAX_GROUPS]):
            rows.add_row("" if number else name, Text(line))
        if len(lines) > MAX_GROUPS:
            rows.add_row("", Text(f"and {len(lines) - MAX_GROUPS} more"))
    return Group(rows)


def job_heading(job: JobHead | JobDetail) -> Text:
    """Job, attempt and state."""
    return Text.assemble((job_text(job), "bold"), " ", (job["state"], COLORS.get(job["state"], "")))


def _sections(job: JobDetail, advice: Advice | None) -> Iterable[tuple[str, list[str]]]:
    columns = job["ranks"]
    tally = {str(name): count for name, count in columns["tally"].items()}
    world = "?" if job["world_size"] is None else job["world_size"]
    others = _not_running(tally)
    yield "ranks", [f"{tally.get('running', 0)} of {world} alive" + (f", {others}" if others else "")]
    if job["steps"]:
        low, high = job["steps"]
        yield "step", [str(low) if low == high else f"{low} to {high}"]
    yield "rates", rates_lines(job["rates"])
    yield "slowest", slowest_lines(job["rates"])
    yield "last report", [_ago(job["last_heard_at"])]
    if advice is not None:
        nodes = f", without {', '.join(map(one_line, advice['exclude_nodes']))}" if advice["exclude_nodes"] else ""
        rules = "; ".join(dict.fromkeys(one_line(reason["rule"]) for reason in advice["reasons"]))
        why = f" (rule: {rules})" if rules not in ("", "otherwise") else ""
        yield "advice", [f"{one_line(advice['recommendation']).replace('_', ' ')}{nodes}{why}"]
    yield "waiting", _waiting(job)
    yield "slow links", _slow_links(job)
    yield "overdue", _overdue(job)
    yield "late", _late_ranks(job)
    yield "not running", _ended(job)


def _waiting(job: JobDetail) -> list[str]:
    """The calls in which ranks wait, each with its longest wait."""
    lines = []
    for one in sorted(job["waiting"] or [], key=lambda one: -one["seconds"]):
        where = collective_text(one_line(one["operation"]), one["sequence_id"]) + of_group(job, one["group"])
        ranks = decode_ranks(one["ranks"])
        more = f" (of {one['count']})" if len(ranks) < one["count"] else ""
        lines.append(f"{ranks_text(ranks)}{more} in {where}: {duration_text(one['seconds'])}")
    return lines


def _slow_links(job: JobDetail) -> list[str]:
    return [
        f"{' and '.join(map(one_line, one['hosts']))}: {duration_text(one['seconds'])} for a round trip"
        for one in job["slow_links"] or []
    ]


def _overdue(job: JobDetail) -> list[str]:
    """Ranks that have passed a limit. Ranks with the same limit share a line, which shows the longest time."""
    found: dict[tuple[str, str, float], list[tuple[int, float]]] = {}
    for rank, overdue in zip(job["ranks"]["rank"], job["ranks"]["overdue"], strict=False):
        if overdue:
            kind, name, age, limit = overdue
            found.setdefault((one_line(str(kind)), one_line(str(name)), limit), []).append((rank, age))
    lines = sorted(found.items(), key=lambda item: -max(age for _, age in item[1]))
    return [
        f"{ranks_text(rank for rank, _ in who)}: {overdue_text(kind, name, max(age for _, age in who), limit)}"
        for (kind, name, limit), who in lines
    ]


def _late_ranks(job: JobDetail) -> list[str]:
    found = []
    for rank, late in zip(job["ranks"]["rank"], job["ranks"]["late"], strict=False):
        if late:
            group, share, seconds, waited = late
            found.append(
                (
                    -waited,
                    f"rank {rank} comes last in {share * 100:.0f} % of the blocks{of_group(job, group)}, by"
                    f" {seconds * 1_000:.0f} ms; the others wait for it for {waited * 100:.0f} % of their time",
                )
            )
    return [line for _, line in sorted(found)]


def _ended(job: JobDetail) -> list[str]:
    """Ranks that do not run. Those that ended in the same way share a line."""
    columns = job["ranks"]
    found: dict[tuple[str, str], list[int]] = {}
    for rank, state, how in zip(columns["rank"], columns["state"], columns["how"], strict=False):
        if state != "running":
            found.setdefault((state, one_line(how)), []).append(rank)
    lines = ((ranks, ", ".join(filter(None, (rank_state_text(state), how)))) for (state, how), ranks in found.items())
    return [f"{ranks_text(ranks)}: {text}" for ranks, text in lines]


def of_group(job: JobDetail, at: object) -> str:
    """``" of tp (1)"``: the group with this index in the job, for the end of a text; "": there is none."""
    if not isinstance(at, int) or not 0 <= at < len(job["groups"]):
        return ""
    group = job["groups"][at]
    return f" of {one_line(group_name(group['name'], group['description']))}"


def _not_running(tally: dict[str, int]) -> str:
    return ", ".join(f"{count} {rank_state_text(name)}" for name, count in tally.items() if name != "running")


def _late(late: LateRank | None) -> str:
    """``"rank 3: 148 ms, 31 %"``: which rank comes last, by how much, and the share of time that others wait for it."""
    if late is None:
        return "-"
    return f"rank {late['rank']}: {late['seconds'] * 1_000:.0f} ms, {late['waited'] * 100:.0f} %"


def _ago(text: str | None) -> str:
    heard = unix(text)
    return "-" if heard is None else ago_text(datetime.now(tz=timezone.utc).timestamp() - heard)
