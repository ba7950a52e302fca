"""Incidents as text for a terminal: one in a list, and one in full."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from otel_fr.console.client import IncidentDetail, JobDetail, JobHead
from otel_fr.incident import IncidentHead, told_now, unix
from otel_fr.incident_rows import MAX_LINES, column, rows
from otel_fr.presentation import count_text, duration_text, ranks_text, resolution_text
from otel_fr.printable import one_line, printable

COLORS = {"firing": "bold red", "opened": "bold red", "updated": "yellow", "resolved": "green"}
INDENT = (0, 0, 0, 2)


def plain_text(shown: RenderableType, console: Console) -> str:
    """The text that the console would show, without padding, for a pipe."""
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def job_text(one: IncidentHead | IncidentDetail | JobHead | JobDetail) -> str:
    """The job's name for readers, and the attempt. Safe for a terminal."""
    return one_line(f"{one['job_title']}/{one['attempt']}")


def moment_text(text: str | None, *, now: datetime | None = None) -> str:
    """A time of the API in local time: ``16:04:12`` if it is today, otherwise with the date."""
    seconds = unix(text)
    if seconds is None:
        return "-"
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone()
    today = (now or datetime.now()).date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def incident_list(found: Sequence[IncidentHead]) -> Group:
    """Each incident in two paragraphs: what identifies it, then the summary, wrapped to the available width.

    A consequence whose cause is listed is only counted.
    """
    listed = {(one["job"], one["id"]) for one in found}
    shown: list[RenderableType] = []
    for one in found:
        if one["caused_by"] and (one["job"], one["caused_by"]) in listed:
            continue
        shown += [_head(one), Padding(Text(summary_line(one)), INDENT)]
    return Group(*shown)


def _head(one: IncidentHead) -> Text:
    state = one["state"]
    return Text.assemble(
        (f"{state} ", _color(one, state)),
        (f"{job_text(one)} ", "bold"),
        f"{one_line(one['category'])} ",
        (f"{moment_text(one['detected_at'])} [{one_line(one['id'])}]", "dim"),
        overflow="fold",
    )


def _color(one: IncidentHead | IncidentDetail, state: str) -> str:
    is_warning = one["severity"] == "warning" and one["state"] == "firing"
    return "bold yellow" if is_warning else COLORS.get(state, "")


def summary_line(one: IncidentHead) -> str:
    """The summary of a listed incident, how long ranks wait, and how many incidents follow from it."""
    text = one_line(told_now(one, time.time()))
    if one["caused_by"]:
        text = f"consequence of {one_line(one['caused_by'])}: {text}"
    count = one["consequence_count"]
    return text + (f" ({count_text(count, 'consequence')})" if count else "")


def incident_page(one: IncidentDetail, now: float | None = None) -> Group:
    """One incident in full: what, where, who waits, the stacks, and where to find more.

    Args:
        now: Unix time. None: the present time.
    """
    now = time.time() if now is None else now
    state = one["state"]
    title = Text.assemble(
        (f"{state} ", _color(one, state)), (one_line(one["category"]), "bold"), f" in job {job_text(one)}"
    )
    facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(one, now):
        facts.add_row(name, Text(text))
    summary = Text(one_line(told_now(one, now)), "bold")
    details = [Text(one_line(text)) for text in one["details"]]
    return Group(title, Text(""), summary, *details, Text(""), facts, *_stacks(one))


def _facts(one: IncidentDetail, now: float) -> Iterable[tuple[str, str]]:
    if text := one["what_to_do"]:
        yield "what to do", one_line(text)
    yield "incident", one_line(one["id"])
    if one["job_title"] != one["job"]:
        yield "job", one_line(one["job"])
    yield from _times(one, now)
    yield from rows(one)
    said = one["nccl_ras"]
    if said is not None:
        yield from column("NCCL's RAS", [f"asked {moment_text(said['asked_at'])}", *said["lines"]])
    if one["caused_by"]:
        yield "caused by", f"{one_line(one['caused_by'])}  (otel-fr incidents show {one_line(one['caused_by'])})"
    yield from column("consequences", one["consequences"] or ())
    links = one["links"] or {}
    if one["trace_id"] and "trace" not in links:
        yield "trace", one["trace_id"]
    for name, url in links.items():
        yield one_line(name), one_line(url)


def _times(one: IncidentDetail, now: float) -> Iterable[tuple[str, str]]:
    started, resolved = unix(one["started_at"]), unix(one["resolved_at"])
    today = datetime.fromtimestamp(now)
    if started is not None:
        lasted = duration_text(max(0.0, (resolved if resolved is not None else now) - started))
        how_long = f"lasted {lasted}" if resolved is not None else f"{lasted} ago"
        yield "began", f"{moment_text(one['started_at'], now=today)}, {how_long}"
    yield "detected", moment_text(one["detected_at"], now=today)
    if resolved is not None:
        why = resolution_text(one["resolution"])
        yield "resolved", moment_text(one["resolved_at"], now=today) + (f"; {why}" if why else "")


def _stacks(one: IncidentDetail) -> Iterable[RenderableType]:
    """The culprits' stacks, with native frames and DataLoader workers; then the merged stacks of other ranks."""
    shown = [rank for rank in one["culprit_ranks"] if str(rank) in one["stacks"]][:MAX_LINES]
    for rank in shown:
        yield Padding(Text(f"stack of rank {rank}:", "dim"), (1, 0, 0, 0))
        yield Padding(Text(printable(one["stacks"][str(rank)].strip("\n")), overflow="fold"), INDENT)
    for group in one["stack_groups"] or ():
        if not set(shown).issuperset(group["ranks"]):
            yield Padding(Text(f"{ranks_text(group['ranks'])}:", "dim"), (1, 0, 0, 0))
            for frame in group["frames"]:
                yield Padding(Text(one_line(frame), overflow="fold"), INDENT)
