"""The decoded content of a ring: records of calls, and the progress in each group."""

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
"""A state in spans, rank reports and flight-recorder files (docs/reference/rank-report.md)."""

_TIMEOUT_SHARE: Final = 0.98
"""Share of a call's timeout after which a failure counts as a timeout: backends start the clock slightly later."""


class Record(NamedTuple):
    """One call. Times are monotonic ns of the rank's machine; ``RingReader.wall_offset_ns`` makes them wall time.

    Attributes:
        record_id: how many calls the rank enqueued before it.
        waited_ns: when a thread began to wait, for a send or receive whose end only ``wait()`` reports (`POSTED`: no
            thread waits yet); when the device was seen to have begun a call that is followed there (`POSTED`: it has
            not); None: any other call.
        ended_ns: None: unknown, or not yet.
        kind: KIND_COLLECTIVE, KIND_P2P, KIND_MONITORED or KIND_GROUP.
        coll_seq, p2p_seq, op_id: PyTorch's counts in the group when it was enqueued; of KIND_GROUP, coll_seq is its
            number among such calls, and the others are 0.
        pair_index: p2p: how many of this peer, direction and tag came before it (modulo 2**32). A receive whose message
            is not known (`UNPAIRED`) has a signature with a peer and ``any_source``, and its own p2p_seq.
        thread, thread_ident: name and `threading.get_ident` of the thread that enqueued it; empty, 0: unknown.
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
        """It destroys its group."""
        return self.kind == KIND_GROUP and self.signature.operation in DESTRUCTIONS

    @property
    def is_posted(self) -> bool:
        """In flight as far as known, with no thread waiting (or its Work was dropped)."""
        return self.state in (RecordState.IN_FLIGHT, RecordState.UNKNOWN) and self.waited_ns == POSTED

    @property
    def since_ns(self) -> int:
        """When a thread may have begun to wait for it."""
        return max(self.issued_ns, self.waited_ns or 0)

    @property
    def timed_out(self) -> bool:
        """It failed after its timeout. The ring does not hold the reason, but backends do not give up earlier."""
        if self.state is not RecordState.FAILED or not self.timeout_ms or self.ended_ns is None:
            return False
        return self.ended_ns - self.issued_ns >= _TIMEOUT_SHARE * self.timeout_ms * 1e6


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The rank's progress in one live group.

    Attributes:
        enqueued, completed: last collective sequence number enqueued, highest one completed; 0: none.
        p2p_enqueued: last sequence number of a send or receive enqueued.
        issued, ended: calls of any kind.
        last_issue_ns, last_end_ns: monotonic ns; 0: never.
    """

    group: GroupDef
    enqueued: int
    completed: int
    p2p_enqueued: int
    issued: int
    ended: int
    last_issue_ns: int
    last_end_ns: int
