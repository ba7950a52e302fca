"""The progress of calls on devices, from PyTorch's recorder or from the Works that the compiled engine follows."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr.ring import POSTED, Record, RecordState
from otel_fr.torch_recorder import is_followed


class DeviceTimes(NamedTuple):
    """The progress of one call on its device. Times are monotonic ns of the rank's machine.

    Attributes:
        state: the call's state on the device.
        began_ns: a time at which the device had begun the call. None: it has not begun, or this is not known.
        ended_ns: when PyTorch noticed that the call had ended. None: it has not ended.
        is_queued: the device has not begun the call, or had not begun it when PyTorch gave it up.
        is_captured: the call was captured into a CUDA graph. The recorder knows neither the call nor its replays.
        duration_s: duration by the device's clock, which PyTorch reads if ``TORCH_NCCL_ENABLE_TIMING`` is set. None:
            not known.
        timeout_ms: PyTorch's timeout of the call. 0: not known. The ring has the group's original timeout.
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
        """`Record.waited_ns` of a call in flight: `POSTED` while the device has not begun the call.

        None: the call has ended, or the device may have begun it as soon as it was enqueued.
        """
        if self.ended_ns is not None or not (self.is_queued or self.began_ns):
            return None
        return POSTED if self.is_queued else max(self.began_ns or 0, POSTED + 1)


def of_followed(record: Record) -> DeviceTimes | None:
    """The ring's data about a call that is followed on its device (`torch_recorder.is_followed`).

    PyTorch notices each change up to two seconds late, so the times give no duration.

    Returns:
        None if the call is not followed, or its state is unknown.
    """
    if not is_followed(record.signature.backend) or record.state is RecordState.UNKNOWN:
        return None
    is_queued = record.waited_ns == POSTED
    began = None if is_queued else record.waited_ns
    return DeviceTimes(
        record.state, began, record.ended_ns, is_queued=is_queued and record.state is not RecordState.COMPLETED
    )


def by_device(record: Record, seen: DeviceTimes | None) -> Record:
    """Complete a record with data of PyTorch's recorder if the ring does not know the call's state."""
    if seen is None or record.state is not RecordState.UNKNOWN:
        return record
    timeout = seen.timeout_ms or record.timeout_ms
    return record._replace(state=seen.state, ended_ns=seen.ended_ns, waited_ns=seen.waited_ns, timeout_ms=timeout)
