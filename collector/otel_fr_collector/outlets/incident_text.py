"""One incident as text for a person at a terminal."""

from __future__ import annotations

from otel_fr.incident import CollectorIncidentData, told
from otel_fr.incident_rows import MAX_LINES, column, rows
from otel_fr.presentation import duration_text, ranks_text, resolution_text
from otel_fr.printable import one_line, printable_data
from otel_fr.stacks import first_thread, is_newest_first
from otel_fr_collector.incidents.incident import ChangeKind

MAX_FRAMES = 12
"""Frames of a culprit's stack that are shown. The incident has all of them."""

_RED, _GREEN, _YELLOW, _BOLD, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def render(
    kind: ChangeKind, data: CollectorIncidentData, *, now: float, started: float | None, color: bool = False
) -> str:
    """The text of an incident, ending with a line break.

    Args:
        now: Unix time.
        started: Unix time at which the fault began. None: it is not known.
        color: use ANSI colours.
    """
    shown: CollectorIncidentData = printable_data(data, one_line)
    shown["stacks"] = printable_data(data["stacks"])
    data = shown
    if kind is ChangeKind.RESOLVED:
        why = resolution_text(data["resolution"])
        head = _paint(f"RESOLVED {_title(data)} [{data['id']}]{why and f': {why}'}", _GREEN, color)
        return "\n".join([head, *_action(data)]) + "\n"
    if data["caused_by"]:
        head = _paint(f"  consequence of {data['caused_by']}: ", _YELLOW, color)
        return f"{head}{data['summary']}\n"
    word = "INCIDENT" if kind is ChangeKind.OPENED else "UPDATE"
    lines = [_paint(f"{word} {_title(data)} [{data['id']}]", _RED + _BOLD, color), f"  {told(data)}"]
    lines += [f"  {text}" for text in data["details"]]
    lines += _action(data)
    said = [] if data["nccl_ras"] is None else data["nccl_ras"]["lines"]
    lines += [f"  {name:<16} {text}" for name, text in (*rows(data), *column("NCCL's RAS", said))]
    if data["trace_id"]:
        lines.append(f"  trace            {data['trace_id']}")
    if started is not None:
        lines.append(f"  started          {duration_text(max(0.0, now - started))} ago")
    for rank in [rank for rank in data["culprit_ranks"][:MAX_LINES] if str(rank) in data["stacks"]]:
        lines += [f"  stack of rank {rank}:", *(f"      {line}" for line in trim_stack(data["stacks"][str(rank)]))]
    return "\n".join(lines) + "\n"


def trim_stack(stack: str) -> list[str]:
    """The first thread's innermost frames, at most `MAX_FRAMES`; a line says how many were left out."""
    thread = first_thread(stack.strip("\n")).partition("\n\n")[0]
    text = thread.splitlines()
    starts = [i for i, line in enumerate(text) if line.lstrip().startswith("File ")]
    if len(starts) <= MAX_FRAMES:
        return text
    left = f"  ... {len(starts) - MAX_FRAMES} more frames"
    if is_newest_first(thread):
        return [*text[: starts[MAX_FRAMES]], left]
    return [*text[: starts[0]], left, *text[starts[-MAX_FRAMES] :]]


def _title(data: CollectorIncidentData) -> str:
    title = str(data["category"])
    if data["culprit_ranks"]:
        title += f": {ranks_text(data['culprit_ranks'])}"
    job = data["job_title"]
    return title + (f" in job {job} attempt {data['attempt']}" if job else "")


def _action(data: CollectorIncidentData) -> list[str]:
    return [f"  what to do       {action}"] if (action := data["what_to_do"]) else []


def _paint(text: str, color: str, wanted: bool) -> str:
    return f"{color}{text}{_RESET}" if wanted else text
