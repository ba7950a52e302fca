"""Decides which ranks report at once that they wait: all ranks in small jobs, a few of each group in large jobs.

If one rank of a large job does not come, all others wait. If each of them reported this with stacks, the collector
would need longer to receive the reports than to find the missing rank. The reports of a few ranks of each group are
enough, and the counts of the others show which ranks have come.
"""

from __future__ import annotations

from otel_fr.monitor import rules
from otel_fr.ring import KIND_P2P, Record


class Witness:
    """Decides whether a rank is a witness.

    Attributes:
        is_one: True if the rank is a witness of the call in which it waits now.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._is_one_of_many = world_size > rules.CROWD
        self._known: dict[str, bool] = {}
        self.is_one = True

    def note(self, call: Record | None) -> None:
        """Note the call in which the rank waits now; None: no call. Both ranks of a send and receive are witnesses."""
        self.is_one = call is None or call.kind == KIND_P2P or not self._is_one_of_many or self._is_one_of(call)

    def _is_one_of(self, call: Record) -> bool:
        group = call.group
        found = self._known.get(group.id)
        if found is None:
            place = group.ranks.index(self._rank) if self._rank in group.ranks else 0
            found = self._known[group.id] = is_one(place, len(group.ranks))
        return found


def is_one(place: int, size: int) -> bool:
    """Return True if the member at ``place`` (from 0) in a group of ``size`` ranks is one of its `WITNESSES`."""
    return place * rules.WITNESSES % max(1, size) < rules.WITNESSES
