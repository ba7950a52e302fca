"""Reports the call sites of a rank's latest collectives. Comparing ranks shows whether one has left out calls."""

from __future__ import annotations

from typing import Final

from otel_fr.rank_report import MAX_LINES, MAX_LINES_GROUPS, ReportedLines
from otel_fr.ring import KIND_COLLECTIVE, RingReader, SiteDef
from otel_fr.stacks import ALPHABET

MAX_FRAMES: Final = 4
"""How many innermost frames are reported. These distinguish call sites (`otel_fr.capture.sites`)."""
UNKNOWN: Final = " "
"""Stands for a call whose record or call site is unknown."""


def call_lines(reader: RingReader) -> tuple[ReportedLines, ...]:
    """Return the call sites of the newest `MAX_LINES` calls, by group. The group used last comes first."""
    by_group: dict[str, dict[int, SiteDef]] = {}
    for record in reader.records(max(reader.first_record, reader.head - MAX_LINES)):
        if record.kind == KIND_COLLECTIVE and not record.destroys:
            sites = by_group.pop(record.group.id, {})
            by_group[record.group.id] = sites
            sites[record.coll_seq] = record.site
    latest = list(by_group.items())[::-1][:MAX_LINES_GROUPS]
    return tuple([_reported(group, sites) for group, sites in latest])


def _reported(group: str, sites: dict[int, SiteDef]) -> ReportedLines:
    """Return the call sites of a group's newest calls, until `ALPHABET` has no letter for another site."""
    places: dict[tuple[str, ...], str] = {}
    known: dict[SiteDef, tuple[str, ...]] = {}
    last, calls = max(sites), []
    for number in range(last, max(min(sites), last - MAX_LINES + 1) - 1, -1):
        site = sites.get(number)
        if site is None or not site.frames:
            calls.append(UNKNOWN)
            continue
        place = known.get(site)
        if place is None:
            frames = site.frames[:MAX_FRAMES]
            place = known[site] = tuple([f"{file}:{line} {function}" for file, line, function in frames])
        if place not in places:
            if len(places) == len(ALPHABET):
                break
            places[place] = ALPHABET[len(places)]
        calls.append(places[place])
    return ReportedLines(group, last - len(calls) + 1, "".join(calls[::-1]), tuple(places))
