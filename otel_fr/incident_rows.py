"""The facts of an incident as rows for a terminal, for the collector's output and the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from otel_fr.incident import CollectorIncidentData, PlaceData
from otel_fr.presentation import collective_text, group_text, place_text, ranks_by_text, ranks_text, site_text
from otel_fr.printable import one_line

MAX_LINES = 8
"""Ranks, call sites and files that are listed one by one. Further ones are counted; JSON has all."""


def rows(data: CollectorIncidentData) -> Iterator[tuple[str, str]]:
    """Yield (name, text on one line): where the fault shows, who is at fault, who waits, and the files."""
    if (group := data["process_group"]) is not None:
        name = group_text(group["name"], group["description"])
        yield "process group", one_line(f"{name}, {ranks_text(group['ranks'])}")
    if data["operation"]:
        yield "collective", one_line(collective_text(data["operation"], data["sequence_id"]))
    if data["field"]:
        values = ranks_by_text((int(rank), value) for rank, value in data["values"].items())
        odd_first = sorted(values.items(), key=lambda item: (len(item[1]), item[1]))
        yield from column(data["field"], [f"{ranks_text(ranks)}: {value}" for value, ranks in odd_first])
    yield from column("culprits", [_culprit(data, rank) for rank in data["culprit_ranks"]])
    sites = data["call_sites"]
    waiting = ranks_by_text((rank, site_text(sites.get(str(rank)))) for rank in data["waiting_ranks"])
    yield from column("waiting", [f"{ranks_text(ranks)}: {site}" for site, ranks in waiting.items()])
    yield from column("files", [f"rank {rank}: {path}" for rank, path in data["flight_recorder_files"].items()])


def column(name: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a row for each text; only the first has the name. Texts beyond `MAX_LINES` are counted."""
    shown = list(texts[:MAX_LINES])
    if len(texts) > MAX_LINES:
        shown.append(f"and {len(texts) - MAX_LINES} more")
    for number, text in enumerate(shown):
        yield "" if number else one_line(name), one_line(text)


def _culprit(data: CollectorIncidentData, rank: int) -> str:
    place: Any = data["places"].get(str(rank))
    # Only the keys that this version knows: a newer collector may send further ones.
    parts = [] if place is None else [place_text(**{name: place[name] for name in PlaceData.__annotations__})]
    parts += [f"replica {one['replica']}" for one in data["culprits"] if one["rank"] == rank and one["replica"]]
    who = f"rank {rank}" + (f" ({', '.join(parts)})" if parts else "")
    return f"{who}: {site_text(data['call_sites'].get(str(rank)))}"
