"""What calls with equal arguments in one group have in common, computed at the first of them."""

from __future__ import annotations

from typing import Final

from otel_fr.capture.completion import EndMode
from otel_fr.capture.sites import SiteKey
from otel_fr.ring.writer import Prepared


class KnownCall:
    """Calls with one signature from one call site, in one thread.

    Attributes:
        thread: `threads.Here.known` of that thread: each has an object of its own.
        timeout_ms: as the call gives it, or what stands for none.
    """

    __slots__ = ("prepared", "thread", "timeout_ms")

    def __init__(self, prepared: Prepared, thread: tuple[int, int], timeout_ms: int) -> None:
        self.prepared = prepared
        self.thread = thread
        self.timeout_ms = timeout_ms


NO_CALLS: Final[dict[SiteKey, KnownCall]] = {}
"""Of signatures that occurred once; stays empty."""


class CachedSignature:
    """Cached by the key of the arguments; looked up for every call.

    Attributes:
        ref: reference of the definition in the ring, valid in ``generation``.
        step: PyTorch's sequence numbers that one call takes.
        op_step: PyTorch's operation numbers that one call takes.
        coalesces: the backend gives all members of a batch one number.
        pair: (operator, peer, tag), for a send or receive.
        calls: collectives that are known from earlier ones, by call site; only `know` adds to them.
    """

    __slots__ = ("calls", "coalesces", "generation", "mode", "op_step", "pair", "ref", "step", "timeout_ms")

    def __init__(
        self,
        *,
        ref: int,
        generation: int,
        mode: EndMode,
        step: int,
        op_step: int,
        timeout_ms: int,
        coalesces: bool,
        pair: tuple[int, int, int],
    ) -> None:
        self.ref = ref
        self.generation = generation
        self.mode = mode
        self.step = step
        self.op_step = op_step
        self.timeout_ms = timeout_ms
        self.coalesces = coalesces
        self.pair = pair
        self.calls = NO_CALLS

    def know(self, site: SiteKey, call: KnownCall) -> int:
        """Remember calls from a site. Returns how many sites there are more."""
        before = len(self.calls)
        if self.calls is NO_CALLS:
            self.calls = {}
        self.calls[site] = call
        return len(self.calls) - before


UNKNOWN: Final = CachedSignature(
    ref=0, generation=0, mode=EndMode.IGNORE, step=0, op_step=0, timeout_ms=0, coalesces=False, pair=(0, 0, 0)
)
"""In place of the signature of a call that occurs for the first time."""
