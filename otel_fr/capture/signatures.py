"""What calls with equal arguments in one group have in common, computed at the first of them."""

from __future__ import annotations

from otel_fr.capture.completion import EndMode


class CachedSignature:
    """Cached by the key of the arguments; looked up for every call.

    Attributes:
        ref: reference of the definition in the ring, valid in ``generation``.
        step: PyTorch's sequence numbers that one call takes.
        op_step: PyTorch's operation numbers that one call takes.
        coalesces: the backend gives all members of a batch one number.
        pair: (operator, peer, tag), for a send or receive.
    """

    __slots__ = ("coalesces", "generation", "mode", "op_step", "pair", "ref", "step", "timeout_ms")

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
