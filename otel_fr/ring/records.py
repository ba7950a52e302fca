"""The decoded content of a ring: records of calls, and the progress of each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_fr.operations import DESTRUCTIONS
from otel_fr.ring.definitions import GroupDef, SignatureDef, SiteDef
from otel_fr.ring.layout import KIND_GROUP, KIND_P2P, POSTED, RecordState

STATE_TEXT: Final[Mapping[RecordState, str]] = {
    RecordState.IN_FLIGHT: "scheduled",
    RecordState.COMPLETED: "completed",
    RecordState.FAILED: "failed",
    RecordState.UNKNOWN: "unknown",
}
"""Names of states in spans, rank reports and flight-recorder files (docs/reference/rank-report.md)."""

_TIMEOUT_SHARE: Final = 0.98
"""Share of a call's timeout after which a failure counts as a timeout. Backends start their clocks at slightly
different times than otel-fr."""


class Record(NamedTuple):
    """One call. Times are monotonic ns of the rank's machine. Add ``RingReader.wall_offset_ns`` to get wall time.

    Attributes:
        record_id: number of calls that the rank enqueued earlier.
        waited_ns: for a send or receive whose end only ``wait()`` reports: when a thread began to wait (`POSTED`: no
            thread waits yet). For a call that is followed on the device: when the device was seen to have begun it
            (`POSTED`: it has not). None for any other call.
        ended_ns: when the call ended; None: unknown, or not yet.
        kind: KIND_COLLECTIVE, KIND_P2P, KIND_MONITORED or KIND_GROUP.
        coll_seq, p2p_seq, op_id: PyTorch's counts in the group when the call was enqueued. For KIND_GROUP, coll_seq is
            the call's number among the group's calls of this kind, and the others are 0.
        pair_index: for p2p: number of earlier calls with this peer, direction and tag (modulo 2**32). For a receive
            of an unknown message (`UNPAIRED`): its p2p_seq. Its signature then has a peer and ``any_source``.
        thread, thread_ident: name and `threading.get_ident` of the enqueuing thread; empty and 0: unknown.
    """

    record_id: int
    issued_ns: int
    waited_ns: int | None
    ended_ns: int | None
    state: RecordState
    coll_seq: int
    p2p_seq: int
    op_id: int
    pair_index: int
    kind: int
    flags: int
    timeout_ms: int
    thread: str
    group: GroupDef
    signature: SignatureDef
    site: SiteDef
    thread_ident: int = 0

    @property
    def sequence_id(self) -> int:
        """The call's number within its stream."""
        return self.p2p_seq if self.kind == KIND_P2P else self.coll_seq

    @property
    def destroys(self) -> bool:
        """True if the call destroys its group."""
        return self.kind == KIND_GROUP and self.signature.operation in DESTRUCTIONS

    @property
    def is_posted(self) -> bool:
        """True if the call is not known to have ended and no thread waits for it, or its Work was dropped."""
        return self.state in (RecordState.IN_FLIGHT, RecordState.UNKNOWN) and self.waited_ns == POSTED

    @property
    def since_ns(self) -> int:
        """The earliest time at which a thread may have begun to wait for the call."""
        return max(self.issued_ns, self.waited_ns or 0)

    @property
    def timed_out(self) -> bool:
        """True if the call failed after its timeout. The ring has no reason, but backends do not give up earlier."""
        if self.state is not RecordState.FAILED or not self.timeout_ms or self.ended_ns is None:
            return False
        return self.ended_ns - self.issued_ns >= _TIMEOUT_SHARE * self.timeout_ms * 1e6


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The rank's progress in one live group.

    Attributes:
        enqueued, completed: last enqueued and highest completed sequence number of a collective; 0: none.
        p2p_enqueued: last enqueued sequence number of a send or receive.
        issued, ended: number of calls of any kind that were enqueued and that have ended.
        last_issue_ns, last_end_ns: when a call was last enqueued and last ended, in monotonic ns; 0: never.
    """

    group: GroupDef
    enqueued: int
    completed: int
    p2p_enqueued: int
    issued: int
    ended: int
    last_issue_ns: int
    last_end_ns: int
