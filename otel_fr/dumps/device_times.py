"""What PyTorch's recorder showed of calls whose ring records do not tell when they end."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr.ring import POSTED, RecordState


class DeviceTimes(NamedTuple):
    """One call. Times are monotonic ns of the rank's machine.

    Attributes:
        state: as the device shows it.
        began_ns: when the device had begun it, at the latest; None: it has not, or that is not known.
        ended_ns: when PyTorch saw that it had ended; None: it has not.
        is_queued: the device has not begun it, or had not when PyTorch gave it up.
        is_captured: it was captured into a CUDA graph: the recorder does not know it, nor its replays.
        duration_s: by the device's clock, which PyTorch reads if ``TORCH_NCCL_ENABLE_TIMING`` is set; None: not known.
    """

    state: RecordState = RecordState.UNKNOWN
    began_ns: int | None = None
    ended_ns: int | None = None
    duration_s: float | None = None
    is_queued: bool = False
    is_captured: bool = False

    @property
    def waited_ns(self) -> int | None:
        """As of a record in flight: `POSTED` while nothing waits in it; None: it may wait since it was enqueued."""
        if self.ended_ns is not None or not (self.is_queued or self.began_ns):
            return None
        return POSTED if self.is_queued else max(self.began_ns or 0, POSTED + 1)
