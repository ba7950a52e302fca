"""Which changes of an incident make an update, and what an incident keeps of its earlier findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from otel_fr.incident import CulpritData
from otel_fr.match import Category, Finding
from otel_fr.match.facts.instances import key_of_finding
from otel_fr.match.facts.ranks import EXCUSABLE
from otel_fr.match.rules.blocked import starved_rank
from otel_fr.stacks import NATIVE_HEADING


def with_first_cause(finding: Finding, first: Finding) -> Finding:
    """Return a later finding of an incident, or the first one if the same culprits now count as late.

    A rank may continue only because its peers time out. The first finding shows why they waited for it, so it stays and
    gets the lateness as a detail. A rank that gets no processor may count as late or as absent: while its peers wait in
    the same call, the first and worse finding stays.
    """
    is_late = finding.category is Category.STRAGGLER and first.category in EXCUSABLE - {Category.STRAGGLER}
    if not is_late or finding.culprit_ranks != first.culprit_ranks or first.stuck_on == "lost":
        return finding
    details = first.details
    if finding.rule == starved_rank.__name__:
        if key_of_finding(finding) != key_of_finding(first):
            return finding
    else:
        details = tuple(dict.fromkeys((*details, finding.summary)))
    return dataclasses.replace(
        first, details=details, ended_ranks=finding.ended_ranks, is_waiting=finding.is_waiting, age=finding.age
    )


def with_hints(finding: Finding, before: Finding) -> Finding:
    """Add the previous finding's hints of kinds that the finding lacks, if culprits and call are the same."""
    is_same = finding.culprit_ranks == before.culprit_ranks and key_of_finding(finding) == key_of_finding(before)
    kept = {kind: texts for kind, texts in before.hints.items() if is_same and kind not in finding.hints}
    if not kept:
        return finding
    details = (*finding.details, *(text for texts in kept.values() for text in texts))
    return dataclasses.replace(finding, details=details, hints={**kept, **finding.hints})


def _places_known(finding: Finding) -> tuple[bool, int]:
    """Whether all ranks' stacks are known, and the magnitude of their number (a power of 2).

    So not each new stack makes an update.
    """
    known = sum(len(group.ranks) for group in finding.stack_groups)
    return known >= len({*finding.culprit_ranks, *finding.waiting_ranks}), known.bit_length()


def essence_of(finding: Finding, cause: str | None, culprits: Sequence[CulpritData]) -> tuple[object, ...]:
    """The fields that make an update if they change. Waiting time does not count, because it always grows."""
    return (
        finding.category,
        finding.group,
        finding.operation,
        finding.sequence_id,
        finding.culprit_ranks,
        finding.waiting_ranks,
        finding.field,
        sorted(finding.values.items()),
        sorted(finding.call_sites.items()),
        sorted((rank, NATIVE_HEADING in text) for rank, text in finding.stacks.items()),
        _places_known(finding),
        finding.p2p,
        finding.stuck_on,
        finding.ended_ranks,
        finding.is_waiting,
        finding.places,
        finding.differed,
        sorted(finding.hints),
        cause,
        [culprit["error"] for culprit in culprits if cause is None],
    )
