"""How far devices are with calls, as PyTorch showed it: its recorder, or the Works that the compiled engine follows."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr.ring import POSTED, Record, RecordState
from otel_fr.torch_recorder import is_followed


class DeviceTimes(NamedTuple):
    """One call. Times are monotonic ns of the rank's machine.

    Attributes:
        state: as the device shows it.
        began_ns: when the device had begun it, at the latest; None: it has not, or that is not known.
        ended_ns: when PyTorch saw that it had ended; None: it has not.
        is_queued: the device has not begun it, or had not when PyTorch gave it up.
        is_captured: it was captured into a CUDA graph: the recorder does not know it, nor its replays.
        duration_s: by the device's clock, which PyTorch reads if ``TORCH_NCCL_ENABLE_TIMING`` is set; None: not known.
        timeout_ms: PyTorch's limit of the call; 0: not known. The ring has the limit that its group had first.
    """

    state: RecordState = RecordState.UNKNOWN
    began_ns: int | None = None
    ended_ns: int | None = None
    duration_s: float | None = None
    is_queued: bool = False
    is_captured: bool = False
    timeout_ms: int = 0

    @property
    def waited_ns(self) -> int | None:
        """As of a record in flight: `POSTED` while nothing waits in it; None: it may wait since it was enqueued."""
        if self.ended_ns is not None or not (self.is_queued or self.began_ns):
            return None
        return POSTED if self.is_queued else max(self.began_ns or 0, POSTED + 1)


def of_followed(record: Record) -> DeviceTimes | None:
    """What the ring has of a call that is followed on its device (`torch_recorder.is_followed`); None: any other.

    Its times are those at which PyTorch saw it, at most two seconds late, so none is a duration.
    """
    if not is_followed(record.signature.backend) or record.state is RecordState.UNKNOWN:
        return None
    is_queued = record.waited_ns == POSTED
    began = None if is_queued else record.waited_ns
    return DeviceTimes(
        record.state, began, record.ended_ns, is_queued=is_queued and record.state is not RecordState.COMPLETED
    )


def by_device(record: Record, seen: DeviceTimes | None) -> Record:
    """The record with what PyTorch's recorder has shown of its call, where the ring does not know it."""
    if seen is None or record.state is not RecordState.UNKNOWN:
        return record
    timeout = seen.timeout_ms or record.timeout_ms
    return record._replace(state=seen.state, ended_ns=seen.ended_ns, waited_ns=seen.waited_ns, timeout_ms=timeout)
