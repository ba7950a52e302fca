"""What PyTorch's recorder showed of calls whose ring records do not tell when they end."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr.ring import RecordState


class DeviceTimes(NamedTuple):
    """One call. Times are monotonic ns of the rank's machine.

    Attributes:
        state: as the device shows it.
        began_ns: when PyTorch saw that the device had begun it; None: it has not, or that is not known.
        ended_ns: when PyTorch saw that it had ended; None: it has not.
        shows_begins: the recorder shows when devices begin calls (``TORCH_NCCL_ENABLE_TIMING``).
        is_captured: it was captured into a CUDA graph: the recorder does not know it, nor its replays.
        duration_s: by the device's clock, which PyTorch reads if ``TORCH_NCCL_ENABLE_TIMING`` is set; None: not known.
    """

    state: RecordState = RecordState.UNKNOWN
    began_ns: int | None = None
    ended_ns: int | None = None
    duration_s: float | None = None
    shows_begins: bool = False
    is_captured: bool = False

    @property
    def is_queued(self) -> bool:
        """The device has not begun it, or had not when PyTorch gave it up."""
        unended = self.state in (RecordState.IN_FLIGHT, RecordState.FAILED)
        return unended and self.shows_begins and self.began_ns is None
