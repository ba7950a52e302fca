"""Divides a rank's time between two collectives of a group: time for itself, time in other calls, and messages.

If the times on the rank's device are known, this needs no clock. After a collective that ends on all members at once
(`otel_fr.operations`), each rank takes time for itself and spends time in calls, until all meet again at the end of the
next collective. The sum of both times is equal on all members, so their times in calls show how their own times differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from otel_fr.identity import Stream
from otel_fr.match.model import Group, Signature
from otel_fr.operations import ENDS_TOGETHER, ENDS_TOGETHER_ON_DEVICE

MAX_GROUPS: Final = 32
"""Groups of one rank whose latest collective is known. If there are more, all are forgotten and begin again."""


class Kind(Protocol):
    """What calls of one kind have in common. ``is_end_seen``: their ends are noticed some time after they happen."""

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
        device: seconds that its device spent in the call; None: the call ran on no device, or what the rank did before
            is unknown.
        own: seconds that the rank took for itself, up to a constant that all members of the group share; None: as in
            ``device``.
        messages: a sum over its sends and receives; 0: none; None: unknown. Equal messages give equal sums.
    """

    device: float | None
    own: float | None
    messages: int | None


@dataclass(slots=True)
class OwnTime:
    """The times of one rank, from its calls in order, as its spans show them.

    Attributes:
        spent: seconds in calls.
        exchanged: a sum over its messages. Equal messages give equal sums, in any order.
        marks: group id -> ``spent`` and ``exchanged`` at the end of its latest collective that ends on all ranks at
            once.
    """

    spent: float = 0.0
    exchanged: int = 0
    marks: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """True once there was a message, or a call with known times on a device. Then every further call matters."""
        return bool(self.marks or self.exchanged)

    def note(self, kind: Kind, rank: int, took: float, device: float | None, *, is_next: bool) -> Before | None:
        """Take the rank's next call that has ended, and return what preceded it.

        Args:
            took: seconds from enqueueing it to its end, by the rank's clock.
            device: seconds on its device; None: unknown.
            is_next: True if no call before it is missing.
        """
        if not is_next:
            self.marks.clear()
        is_on_device = kind.is_end_seen
        if is_on_device and device is None:
            self.marks.clear()  # it is unknown how long the device executed the call
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
