"""One incident as text for a person at a terminal."""

from __future__ import annotations

from itertools import zip_longest

from otel_fr.incident import CollectorIncidentData, told
from otel_fr.presentation import (
    collective_text,
    duration_text,
    group_text,
    place_text,
    ranks_by_text,
    ranks_text,
    resolution_text,
    site_text,
)
from otel_fr.printable import one_line, printable_data
from otel_fr.stacks import first_thread, is_newest_first
from otel_fr_collector.incidents.incident import ChangeKind

MAX_FRAMES = 12
"""Frames shown of a culprit's stack; the incident has all of them."""
MAX_RANKS = 8
"""Ranks whose lines are shown one by one; the rest are counted."""

_RED, _GREEN, _YELLOW, _BOLD, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def render(
    kind: ChangeKind, data: CollectorIncidentData, *, now: float, started: float | None, color: bool = False
) -> str:
    """The text of an incident, ending with a line break.

    Args:
        now: Unix time. started: Unix time at which the fault began; None: not known.
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
    lines += _facts(data)
    lines += _culprits(data)
    lines += _waiting(data)
    lines += _ras(data)
    lines += _files(data)
    if data["trace_id"]:
        lines.append(f"  trace            {data['trace_id']}")
    if started is not None:
        lines.append(f"  started          {duration_text(max(0.0, now - started))} ago")
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


def _facts(data: CollectorIncidentData) -> list[str]:
    lines = []
    group = data["process_group"]
    if group is not None:
        name = group_text(group["name"], group["description"])
        lines.append(f"  process group    {name}, {ranks_text(group['ranks'])}")
    if data["operation"]:
        lines.append(f"  collective       {collective_text(data['operation'], data['sequence_id'])}")
    values = data["values"]
    if data["field"]:
        by_value = sorted(ranks_by_text((int(rank), value) for rank, value in values.items()).items(), key=_rarity)
        shown = [f"{ranks_text(ranks)}: {value}" for value, ranks in by_value[:MAX_RANKS]]
        lines.append(f"  {data['field']:<16} {'; '.join(shown)}{_more(len(by_value))}")
    return lines


def _rarity(item: tuple[str, list[int]]) -> tuple[int, list[int]]:
    """Sorts the value of the fewest ranks first: these are the odd ones."""
    return len(item[1]), item[1]


def _culprits(data: CollectorIncidentData) -> list[str]:
    lines = []
    culprits, sites, stacks = data["culprit_ranks"], data["call_sites"], data["stacks"]
    places = data["places"]
    replicas = {one["rank"]: one["replica"] for one in data["culprits"]}
    for rank in culprits[:MAX_RANKS]:
        inside = [place_text(**places[str(rank)])] if str(rank) in places else []
        inside += [f"replica {one_line(name)}"] if (name := replicas.get(rank)) else []
        who = f"rank {rank}" + (f" ({', '.join(inside)})" if inside else "")
        lines.append(f"  {'culprit':<16} {who}: {site_text(sites.get(str(rank)))}")
        if str(rank) in stacks:
            lines += [f"      {line}" for line in trim_stack(stacks[str(rank)])]
    if len(culprits) > MAX_RANKS:
        lines.append(f"  {_more(len(culprits)).strip()}")
    return lines


def _waiting(data: CollectorIncidentData) -> list[str]:
    sites = data["call_sites"]
    by_site = ranks_by_text((rank, site_text(sites.get(str(rank)))) for rank in data["waiting_ranks"])
    lines = [f"  {'waiting':<16} {ranks_text(ranks)}: {site}" for site, ranks in list(by_site.items())[:MAX_RANKS]]
    if len(by_site) > MAX_RANKS:
        lines.append(f"  {_more(len(by_site)).strip()}")
    return lines


def _ras(data: CollectorIncidentData) -> list[str]:
    said = data["nccl_ras"]
    if said is None:
        return []
    return [f"  {name:<17}{line}" for name, line in zip_longest(("NCCL's RAS",), said["lines"], fillvalue="")]


def _files(data: CollectorIncidentData) -> list[str]:
    files = data["flight_recorder_files"]
    if not files:
        return []
    shown = [f"    rank {rank}: {path}" for rank, path in list(files.items())[:MAX_RANKS]]
    return [f"  flight-recorder files{_more(len(files))}", *shown]


def _more(count: int) -> str:
    return f" and {count - MAX_RANKS} more" if count > MAX_RANKS else ""


def _paint(text: str, color: str, wanted: bool) -> str:
    return f"{color}{text}{_RESET}" if wanted else text
