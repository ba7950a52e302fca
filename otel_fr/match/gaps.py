"""Ranks whose recording had errors: what they recorded is left out, since a hole in it looks like a call left out."""

from __future__ import annotations

import dataclasses

from otel_fr.match.model import Evidence


def without_gaps(evidence: Evidence) -> Evidence:
    """The evidence without the calls and counts of ranks that have gaps. How they ended, and their stacks, stay."""
    left_out = {rank for rank, info in evidence.ranks.items() if info.has_gaps}
    if not left_out:
        return evidence
    ranks = {
        rank: dataclasses.replace(info, progress={}, idle=None, completed_age=None, complete=False)
        if rank in left_out
        else info
        for rank, info in evidence.ranks.items()
    }
    return dataclasses.replace(
        evidence,
        ranks=ranks,
        calls=[call for call in evidence.calls if call.rank not in left_out],
        kept_patterns=frozenset(pattern for pattern in evidence.kept_patterns if pattern.rank not in left_out),
    )
