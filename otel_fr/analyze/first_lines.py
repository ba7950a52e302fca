"""Finds the first call that a rank made at another line of the program than its peers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Final

from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps.columns import COLLECTIVE
from otel_fr.dumps.model import Dump
from otel_fr.match import Finding
from otel_fr.match.texts.hints import MAX_CULPRITS, MAX_PEERS, first_line_texts
from otel_fr.stacks import Lines

MIN_RANKS: Final = 3
"""Without a fault, a group needs this many ranks to show which one differs from most."""


def with_first_lines(run: Run, finding: Finding) -> Finding:
    """Add to a finding a sentence about the first lines at which culprits and peers differ, if they are known."""
    group = finding.group
    if group is None or finding.caused_by is not None or finding.stream != "collective" or not finding.culprit_ranks:
        return finding
    members, wanted = set(group.ranks), set(finding.culprit_ranks)
    dumps = [dump for dump in run.dumps if dump.rank in members]
    astray = [dump for dump in dumps if dump.rank in wanted][:MAX_CULPRITS]
    peers = [dump for dump in dumps if dump.rank not in wanted][:MAX_PEERS]
    lines = {dump.rank: _lines(dump, run.ids[dump.rank]).get(group.id, {}) for dump in astray + peers}
    texts = tuple(first_line_texts(lines, group, wanted))
    return dataclasses.replace(finding, details=(*finding.details, *texts)) if texts else finding


def first_lines(run: Run) -> list[str]:
    """If there is no fault: sentences about ranks whose last calls were at other lines than most of their group's."""
    if len(run.dumps) < MIN_RANKS:
        return []
    found: list[str] = []
    of_ranks = {dump.rank: _lines(dump, run.ids[dump.rank]) for dump in run.dumps[:MAX_PEERS]}
    by_group: dict[str, dict[int, Lines]] = {}
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
            found += first_line_texts(
                lines, run.evidence.groups[id_], {rank for rank, site in sites.items() if site != most}
            )
    return found


def _lines(dump: Dump, ids: Mapping[str, str]) -> dict[str, Lines]:
    """Group id -> sequence number -> call site and frames of a rank's collective."""
    entries = dump.entries
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    of_key = [found.setdefault(ids[key], {}) if key in ids else {} for key in entries.groups]
    which = entries.stream == COLLECTIVE
    columns = (entries.sequence_id[which], entries.group[which], entries.call_site[which])
    places = [(one.site, *one.frames) for one in entries.call_sites]
    for number, group, at in zip(*[column.tolist() for column in columns], strict=True):
        if places[at][0]:
            of_key[group][number] = places[at]
    return {id_: own for id_, own in found.items() if own}
