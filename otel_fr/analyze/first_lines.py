"""The first call that a rank made elsewhere in the program than its peers: noticed only later, if calls look alike.

Ranks may make a call in lines of their own, so a difference alone says nothing. It does where the rank's lines were its
peers' before it, and are theirs again from there on, a few calls apart: it left out calls, or made some too many.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps.columns import COLLECTIVE, CallSite
from otel_fr.dumps.model import Dump
from otel_fr.match import Finding, Group
from otel_fr.match.texts.calls import group_of
from otel_fr.presentation import ranks_by_text, ranks_text, summary_text

MAX_APART: Final = 8
"""Calls that a rank has left out, or made too many."""
MAX_ASTRAY: Final = 8
MAX_PEERS: Final = 64
"""Ranks that are compared: more have not gone astray one by one, and all run alike."""
MIN_RANKS: Final = 3
"""Of a group, from which on most ranks show which one went astray, if no fault does."""

_Lines = dict[int, CallSite]
"""By number of the collective."""


def with_first_lines(run: Run, finding: Finding) -> Finding:
    """The finding with a sentence on these lines, if they are known and differ."""
    group = finding.group
    if group is None or finding.caused_by is not None or finding.stream != "collective" or not finding.culprit_ranks:
        return finding
    members, wanted = set(group.ranks), set(finding.culprit_ranks)
    dumps = [dump for dump in run.dumps if dump.rank in members]
    astray = [dump for dump in dumps if dump.rank in wanted][:MAX_ASTRAY]
    peers = [dump for dump in dumps if dump.rank not in wanted][:MAX_PEERS]
    lines = {dump.rank: _lines(dump, run.ids[dump.rank]).get(group.id, {}) for dump in astray + peers}
    texts = tuple(_texts(lines, group, wanted))
    return dataclasses.replace(finding, details=(*finding.details, *texts)) if texts else finding


def first_lines(run: Run) -> list[str]:
    """The same where no fault was found: of ranks that made their last calls elsewhere than most of their group."""
    if len(run.dumps) < MIN_RANKS:
        return []
    found: list[str] = []
    of_ranks = {dump.rank: _lines(dump, run.ids[dump.rank]) for dump in run.dumps[:MAX_PEERS]}
    by_group: dict[str, dict[int, _Lines]] = {}
    for rank, groups in of_ranks.items():
        for id_, own in groups.items():
            by_group.setdefault(id_, {})[rank] = own
    for id_, lines in by_group.items():
        if len(lines) < MIN_RANKS:
            continue
        last = min(map(max, lines.values()))
        sites = {rank: own[last] for rank, own in lines.items() if last in own}
        if len(set(sites.values())) < 2:
            continue
        (most, count), *_ = Counter(sites.values()).most_common(1)
        if 2 * count > len(lines):
            found += _texts(lines, run.evidence.groups[id_], {rank for rank, site in sites.items() if site != most})
    return found


def _lines(dump: Dump, ids: Mapping[str, str]) -> dict[str, _Lines]:
    """By group, where a rank made its collectives."""
    entries = dump.entries
    found: dict[str, _Lines] = {}
    of_key = [found.setdefault(ids[key], {}) if key in ids else {} for key in entries.groups]
    which = entries.stream == COLLECTIVE
    columns = (entries.sequence_id[which], entries.group[which], entries.call_site[which])
    for number, group, at in zip(*[column.tolist() for column in columns], strict=True):
        if entries.call_sites[at].site:
            of_key[group][number] = entries.call_sites[at]
    return {id_: own for id_, own in found.items() if own}


def _texts(lines: Mapping[int, _Lines], group: Group, astray: Collection[int]) -> Iterator[str]:
    common = _common([own for rank, own in lines.items() if rank not in astray])
    found: list[tuple[int, str]] = []
    for rank in sorted(lines.keys() & set(astray)):
        number = _first(lines[rank], common)
        if number is not None:
            here, there = _sites(lines[rank][number], common[number])
            found.append((rank, f"number {number} of {group_of(group)}, at {here}; the others at {there}"))
    for text, ranks in ranks_by_text(found).items():
        yield summary_text(f"the first call that {ranks_text(ranks)} made elsewhere: {text}")


def _common(of_peers: list[_Lines]) -> _Lines:
    """Where all peers that made a call made it in the same place."""
    found: _Lines = {}
    differing: set[int] = set()
    for lines in of_peers:
        for number, site in lines.items():
            if found.setdefault(number, site) != site:
                differing.add(number)
    return {number: site for number, site in found.items() if number not in differing}


def _first(own: _Lines, common: _Lines) -> int | None:
    """The number at which the rank first was elsewhere; None: it never was, or may always have been."""
    both = sorted(own.keys() & common.keys())
    first = next((number for number in both if own[number] != common[number]), None)
    if first is None or first == both[0]:
        return None
    return first if any(_is_apart(own, common, first, calls) for calls in range(1, MAX_APART + 1)) else None


def _is_apart(own: _Lines, common: _Lines, first: int, calls: int) -> bool:
    """From there on, the rank was where its peers were so many calls later, or earlier."""
    later = [site == common[n + calls] for n, site in own.items() if n >= first and n + calls in common]
    earlier = [site == common[n - calls] for n, site in own.items() if n - calls >= first and n - calls in common]
    return any(alike and all(alike) for alike in (later, earlier))


def _sites(own: CallSite, other: CallSite) -> tuple[str, str]:
    """The lines, or the first of their callers' that differ."""
    pairs = zip((own.site, *own.frames), (other.site, *other.frames), strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), (own.site, other.site))
