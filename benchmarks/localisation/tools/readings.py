"""A person's reading of texts that name no culprit: the ranks that differ from most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping


def minority(of: Mapping[int, Hashable]) -> set[int]:
    """Return the ranks without the most frequent value; all ranks if two are equally frequent; none if there is one."""
    counts = Counter(of.values()).most_common(2)
    if len(counts) < 2:
        return set()
    most = counts[0] if counts[0][1] > counts[1][1] else None
    return {rank for rank, value in of.items() if most is None or value != most[0]}
