"""The wait in a collective that ends on all its ranks at about the same time (`otel_fr.operations`).

There, a rank's duration is the time that it waits for others, and the transfer. No two clocks are compared. The rank
with the shortest duration came last, and the differences say by how much: a rank's lag is the longest duration minus
its own. A rank is *late* by how much its lag exceeds the lags of half of the group.

Lateness counts only if the rank itself spent that time: since the end of its previous call in any group, or on a device
since the group's previous collective, it took longer for itself than the others, by at least half of the lateness.
Otherwise it came late because another call ended late, for all ranks or for this one. That excludes three cases: the
later calls of a burst, such as DDP's buckets, which are enqueued before the previous ones end; a rank that waited for a
straggler in another group; and a pipeline stage that waited for a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

MIN_WAIT = 0.001
"""A wait counts if the last rank came at least this many seconds after half of the group. Shorter waits are about as
long as it takes to notice the end of a call."""
TIMED_SHARE = 0.75
"""Least share of a group's members whose times on devices must be known for a collective to show anything."""
NANO = 1e9


class Wait(NamedTuple):
    """The wait in one collective. Ranks are indices of its durations.

    Attributes:
        last: the rank that came last.
        behind: seconds by which it came after half of the group.
        late: (rank, seconds) by how much each rank came after half of the group; negative: before it.
    """

    last: int
    behind: float
    late: list[tuple[int, float]]


def is_shown(durations: Sequence[float]) -> bool:
    """Return True if these durations (ns) differ enough to show a wait."""
    least = min(durations)
    return max(durations) - least >= MIN_WAIT * NANO and least >= 0


def wait_of(durations: Sequence[float], owns: Sequence[float | None]) -> Wait | None:
    """Return the wait that durations show, if the last rank itself spent that time.

    Args:
        durations: in ns; `is_shown` holds for them.
        owns: seconds that each rank took for itself before, up to a constant that all ranks share; None: unknown.
    """
    least, usual = min(durations), sorted(durations)[len(durations) // 2]
    waiting = sorted(own for own, took in zip(owns, durations, strict=True) if took >= usual and own is not None)
    usual_own = waiting[len(waiting) // 2] if waiting else 0.0
    last, behind = durations.index(least), (usual - least) / NANO
    if behind >= MIN_WAIT and not _is_own(owns[last], usual_own, behind):
        return None
    return Wait(last, behind, list(_late(durations, owns, usual, usual_own)))


def _late(
    durations: Sequence[float], owns: Sequence[float | None], usual: float, usual_own: float
) -> Iterator[tuple[int, float]]:
    for index, (own, took) in enumerate(zip(owns, durations, strict=True)):
        lag = (usual - took) / NANO
        if lag <= -MIN_WAIT or (lag >= MIN_WAIT and _is_own(own, usual_own, lag)):
            yield index, lag


def _is_own(own: float | None, usual: float, lag: float) -> bool:
    return own is None or own - usual >= lag / 2
