"""Which ranks to ask for a full report: in large jobs, most ranks that wait do not say in which call.

A few ranks of each group do (`otel_fr.monitor.witness`), and the counts of the others show how far each has come. This
is enough for most verdicts. It does not show what a rank called instead of the call in which its peers wait, whether
all calls of a collective fit together, or what each device does.

This module also decides which verdicts to hold back, because the culprit may show a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match import UNENDED, Ending, Finding
from otel_fr_collector import timeline
from otel_fr_collector.jobs.snapshot import Snapshot

MAX_ABSENT = 64
"""Ranks that are asked because others wait for them in one collective."""
MAX_ASKED = 8_192
"""Ranks that are asked after one judgement: taking their reports costs half a second of CPU."""


def to_ask(taken: Snapshot, findings: Iterable[Finding]) -> set[int]:
    """The ranks whose calls are missing, so that the findings may be wrong."""
    unlisted = {rank: info for rank, info in taken.ranks.items() if info.unlisted is not None}
    if not unlisted:
        return set()
    asked: set[int] = set()
    open_ = {(call.group, call.sequence_id) for call in taken.calls if call.state in UNENDED and call.stream != "p2p"}
    for group_id, number in open_:
        group = taken.groups.get(group_id)
        members = () if group is None else group.ranks
        absent = [rank for rank in members if rank in unlisted and not unlisted[rank].has_enqueued(group_id, number)]
        asked.update(absent[:MAX_ABSENT])
    for one in findings:
        # If all have joined, or calls do not fit together, each call matters. Consequences need no further calls.
        if one.caused_by is None and (one.category.is_mismatch or not one.culprit_ranks):
            asked.update(unlisted.keys() & one.waiting_ranks)
    return set(sorted(asked)[:MAX_ASKED])


def is_early(taken: Snapshot, finding: Finding) -> bool:
    """Whether to hold a finding back: it names nobody, and asked ranks may answer; or it names ranks that may end."""
    if finding.category.is_mismatch or finding.age is None:
        return False
    if finding.culprit_ranks:
        return _may_be_ending(taken, finding) and finding.age < timeline.ENDING_PATIENCE * taken.stall
    is_asked = any(info.unlisted is not None for rank in finding.waiting_ranks if (info := taken.ranks.get(rank)))
    return is_asked and finding.age < timeline.WITNESS_PATIENCE * taken.stall


def _may_be_ending(taken: Snapshot, finding: Finding) -> bool:
    """Whether most members of the collective have not joined, and some of these have ended well. If the others do so,
    too, the waiting ranks have made a call too many."""
    members = set(finding.group.ranks) if finding.group is not None and finding.stream == "collective" else set()
    absent = [info for rank in members.difference(finding.waiting_ranks) if (info := taken.ranks.get(rank)) is not None]
    endings = {info.ending for info in absent}
    return 2 * len(absent) > len(members) and endings == {Ending.CLEAN, Ending.RUNNING}
