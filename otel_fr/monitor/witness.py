"""Which ranks say at once that they wait: all of them in small jobs, a few of each group in large ones.

When one rank of a large job does not come, all others wait. If each said so, with stacks, the collector would take that
in for longer than it takes to find the rank: a few of each group show the same, and the others' counts who is there.
"""

from __future__ import annotations

from otel_fr.monitor import rules
from otel_fr.ring import KIND_P2P, Record


class Witness:
    """Whether a rank is one.

    Attributes:
        is_one: of the call that it waits in now.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._is_one_of_many = world_size > rules.CROWD
        self._known: dict[str, bool] = {}
        self.is_one = True

    def note(self, call: Record | None) -> None:
        """It waits in this call now; None: in none. Of a pair that exchanges a message, each is a witness."""
        self.is_one = call is None or call.kind == KIND_P2P or not self._is_one_of_many or self._is_one_of(call)

    def _is_one_of(self, call: Record) -> bool:
        group = call.group
        found = self._known.get(group.id)
        if found is None:
            place = group.ranks.index(self._rank) if self._rank in group.ranks else 0
            found = self._known[group.id] = is_one(place, len(group.ranks))
        return found


def is_one(place: int, size: int) -> bool:
    """Whether the member at this place, from 0, of a group of so many ranks is one of its `WITNESSES`."""
    return place * rules.WITNESSES % max(1, size) < rules.WITNESSES
