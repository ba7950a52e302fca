"""Failed peers that the collector reports: which groups are affected, and when calls of this rank must be ended.

The collector advises, and this module decides. Calls are ended only while this rank itself waits in a group with a
failed member, and has waited for the stall time, or for a second if the member's process has ended. A collector that is
wrong, or cannot be reached, ends no call of a rank that makes progress. Pure rules: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from otel_fr.control.v1.control_pb2 import PeerFailed
from otel_fr.identity import MAX_RANKS, encode_ranks
from otel_fr.monitor.rules import seconds_between
from otel_fr.presentation import group_name
from otel_fr.ring import GroupDef, Record

ENDED = "ended"
"""Kind of a certain failure: the failed rank's monitor has seen the process end."""
SILENT = "silent"
"""Kind of a failure that may only be the collector's problem. Each machine knows better whether its own ranks run."""
ENDED_SECONDS = 1.0
"""How long a rank must have waited if a member of the group has ended, or the stall time if that is shorter. The member
cannot come any more. If the backend notices the end, as gloo does on its connections, the call has ended earlier."""
MAX_ORDERED = 1_024
"""How many calls that were to be ended are remembered, or all that wait if these are more: each is ended only once."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a rank counts as failed. The fields are those in `PeerFailed`."""

    kind: str
    reason: str
    incident_id: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice to the rank about failed peers.

    Attributes:
        ranks: the failed ranks.
        groups: this rank's groups with a failed member; not empty.
        failed: why the ranks count as failed.
    """

    ranks: tuple[int, ...]
    groups: tuple[GroupDef, ...]
    failed: Failed

    def message(self, command: str) -> dict[str, object]:
        """Return the message to the rank (`otel_fr.capture.peer_actions`)."""
        return {
            "cmd": command,
            "ranks": encode_ranks(self.ranks),
            "groups": [group_name(group.name, group.description) for group in self.groups],
            "names": [group.name for group in self.groups],
            "kind": self.failed.kind,
            "reason": self.failed.reason,
            "incident": self.failed.incident_id,
        }


class PeerWatch:
    """The failed peers of one rank.

    Args:
        stall_seconds: how long the rank must have waited before its calls are ended, if no member has ended.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._failed: dict[int, Failed] = {}
        self._ordered: dict[int, None] = {}

    def told(
        self, message: PeerFailed, own_rank: int, groups: Iterable[GroupDef], running: Container[int] = ()
    ) -> Notice | None:
        """Handle a message of the collector. None: it contains nothing new, or concerns no group of this rank.

        Args:
            groups: the live groups of this rank.
            running: ranks whose processes this monitor sees running. Silence of these ranks is not a failure.
        """
        failed = Failed(message.kind, message.reason[:500], message.incident_id[:200])
        seen = running if failed.kind == SILENT else ()
        others = [rank for rank in message.ranks if 0 <= rank != own_rank and rank not in seen]
        news = [rank for rank in others if self._is_news(rank, failed)]
        for rank in news[: max(0, MAX_RANKS - len(self._failed))]:
            self._failed[rank] = failed
        return _notice(news, failed, groups)

    def _is_news(self, rank: int, failed: Failed) -> bool:
        known = self._failed.get(rank)
        return known is None or (known.kind != failed.kind and failed.kind == ENDED)

    def recovered(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Note that these ranks work. Return the ranks that counted as failed."""
        return tuple(rank for rank in ranks if self._failed.pop(rank, None) is not None)

    def forget(self) -> None:
        """Forget all failures, because the rank is in another run now."""
        self._failed.clear()
        self._ordered.clear()

    def due(
        self,
        waiting: Iterable[Record],
        uncertain: Iterable[Record],
        groups: Iterable[GroupDef],
        *,
        moved_ns: int,
        now_ns: int,
    ) -> Notice | None:
        """Return a notice of the groups whose calls must be ended now, once for each call, or None.

        Args:
            waiting: the rank's calls in flight.
            uncertain: each group's newest call whose backend does not show when it ends. Such a call counts only if the
                failed rank's process has ended and this rank has not moved for the stall time.
            groups: the live groups of this rank.
            moved_ns: when the rank last enqueued or ended a call.
        """
        if not self._failed:
            return None
        found = []
        for record in waiting:
            seconds = 0.0 if record.is_posted else seconds_between(record.since_ns, now_ns)
            if seconds >= self._stall_seconds:
                found.append((record, self._failed_in(record.group)))
            elif seconds >= ENDED_SECONDS:
                found.append((record, self._failed_in(record.group, ENDED)))
        if seconds_between(moved_ns, now_ns) >= self._stall_seconds:
            found += [(record, self._failed_in(record.group, ENDED)) for record in uncertain if not record.is_posted]
        new = [(record, ranks) for record, ranks in found if ranks and record.record_id not in self._ordered]
        if not new:
            return None
        for record, _ in new:
            self._ordered[record.record_id] = None
        while len(self._ordered) > max(MAX_ORDERED, len(found)):
            del self._ordered[next(iter(self._ordered))]
        ranks = sorted({rank for _, own in new for rank in own})
        return _notice(ranks, self._failed[ranks[0]], groups)

    def _failed_in(self, group: GroupDef, kind: str | None = None) -> list[int]:
        failed = self._failed
        return [rank for rank in failed.keys() & group.ranks if kind in (None, failed[rank].kind)]


def _notice(ranks: list[int], failed: Failed, groups: Iterable[GroupDef]) -> Notice | None:
    affected = tuple(group for group in groups if not set(ranks).isdisjoint(group.ranks))
    return Notice(tuple(ranks), affected, failed) if affected else None
