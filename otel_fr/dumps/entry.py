"""One recorded call of a flight-recorder file, of any recorder."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr.identity import Stream
from otel_fr.match.model import CallState, Signature


class Entry(NamedTuple):
    """One recorded call.

    Attributes:
        group: `GroupInfo.key`.
        signature: as recorded. ``peer`` is a global rank in otel-fr's files, and a rank within the group in others.
        pair_index: number of a message among messages with the same peer, direction and tag. None: not recorded.
        age, duration: seconds. None: not recorded.
        site: ``"file:line function"`` of the user's code. Empty: not known.
        frames: the full recorded stack in the same form, innermost first.
        batch: record id of the entry that ends the coalesced batch. None: the call is not in a batch.
        created_ns, started_ns, ended_ns: times of the rank's wall clock, for a timeline. Never compared with times of
            another rank. None: not recorded.
        backend: ``"nccl"``, ``"gloo"``, ... Empty: not recorded.
        thread: name of the thread that enqueued the call.
    """

    group: str
    stream: Stream
    sequence_id: int
    record: int
    signature: Signature
    state: CallState
    pair_index: int | None = None
    age: float | None = None
    duration: float | None = None
    gap: float | None = None
    timeout: float | None = None
    error: str | None = None
    site: str = ""
    batch: int | None = None
    frames: tuple[str, ...] = ()
    created_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    backend: str = ""
    thread: str = ""

    def seen_state(self, has_completions: bool) -> CallState:
        """The state. If no recorder of the run records when calls end, UNKNOWN replaces IN_FLIGHT.

        Args:
            has_completions: some recorder of the run records when calls end (`Dump.has_completions`).
        """
        return self.state if has_completions or self.state is not CallState.IN_FLIGHT else CallState.UNKNOWN
