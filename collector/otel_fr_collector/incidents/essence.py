"""What of an incident makes an update if it changes."""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.incident import CulpritData
from otel_fr.match import Finding
from otel_fr.stacks import NATIVE_HEADING


def _places_known(finding: Finding) -> tuple[bool, int]:
    """Whether it is known of all ranks where they are; and of how many, as a power of 2: not each new one is news."""
    known = sum(len(group.ranks) for group in finding.stack_groups)
    return known >= len({*finding.culprit_ranks, *finding.waiting_ranks}), known.bit_length()


def essence_of(finding: Finding, cause: str | None, culprits: Sequence[CulpritData]) -> tuple[object, ...]:
    """The fields whose change makes an update; waiting time is not one, because it always grows."""
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
        cause,
        [culprit["error"] for culprit in culprits if cause is None],
    )
