"""What a rank does between two collectives of a group: time that it takes for itself, time in other calls, messages.

Where its device's times are known, no clock is needed for it. After a collective that ends on all members at once
(`match.lateness`), each rank takes time for itself, and spends time in calls, up to the end of the next one, where they
meet again. The two add up to the same on every member, so the ranks' times in calls say how their own times differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from otel_fr.identity import Stream
from otel_fr.match.model import Group, Signature
from otel_fr.operations import ENDS_TOGETHER, ENDS_TOGETHER_ON_DEVICE

MAX_GROUPS: Final = 32
"""Groups of one rank whose latest collective is known; beyond, all are forgotten and begin anew."""


class Kind(Protocol):
    """What calls of one kind have in common. ``is_end_seen``: their ends are seen some time after them."""

    @property
    def group(self) -> Group: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def stream(self) -> Stream: ...

    @property
    def is_end_seen(self) -> bool: ...


class Before(NamedTuple):
    """What a rank did since the previous collective of a call's group that ended on all members.

    Attributes:
        device: seconds that its device spent in the call; None: it has none, or what it did before is not known.
        own: seconds that the rank took for itself, up to a difference that all members of the group share; None: as
            ``device``.
        messages: its sends and receives, 0: none; equal for equal ones. None: not known.
    """

    device: float | None
    own: float | None
    messages: int | None


@dataclass(slots=True)
class OwnTime:
    """Of one rank, as its spans show its calls in their order.

    Attributes:
        spent: seconds in calls. exchanged: a sum over its messages, equal for equal ones in any order.
        marks: by group id, both at the end of its latest collective that ends on all ranks at once.
    """

    spent: float = 0.0
    exchanged: int = 0
    marks: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """Calls on a device with known times, or messages, have come: every further call matters."""
        return bool(self.marks or self.exchanged)

    def note(self, kind: Kind, rank: int, took: float, device: float | None, *, is_next: bool) -> Before | None:
        """Take the rank's next call that has ended; returns what preceded it.

        Args:
            took: seconds from enqueueing it to its end, by the rank's clock.
            device: seconds on its device; None: not known.
            is_next: no call is missing before it.
        """
        if not is_next:
            self.marks.clear()
        is_on_device = kind.is_end_seen
        if is_on_device and device is None:
            self.marks.clear()  # how long its device was in it is not known
            return None
        signature, group = kind.signature, kind.group.id
        if kind.stream == "p2p":
            way = None if signature.peer is None else signature.peer - rank
            self.exchanged += hash((signature.operation == "send", way))
        self.spent += took if device is None else device
        mark = self.marks.get(group)
        if mark is None:
            before = Before(None, None, None) if self.exchanged else None
        else:
            own = None if device is None else mark[0] - self.spent
            before = Before(device, own, self.exchanged - mark[1])
        meetings = ENDS_TOGETHER_ON_DEVICE if is_on_device else ENDS_TOGETHER
        is_meeting = kind.stream == "collective" and signature.operation in meetings
        if is_meeting and (device is not None or self.is_used):
            if len(self.marks) >= MAX_GROUPS:
                self.marks.clear()
            self.marks[group] = self.spent, self.exchanged
        return before
