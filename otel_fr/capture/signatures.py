"""What is known of all calls with equal arguments, so that the next of them need not be described again."""

from __future__ import annotations

from otel_fr.capture.completion import Mode


class Signature:
    """What is known of all calls with equal arguments in one group.

    Attributes:
        ref: of the definition in the ring, of ``generation``.
        step: how many of PyTorch's sequence numbers one call takes.
        op_step: the same for its operation number.
        coalesces: the backend gives the members of a batch one number.
        pair: (operator, peer, tag), for a send or receive.
    """

    __slots__ = ("coalesces", "generation", "mode", "op_step", "pair", "ref", "step", "timeout_ms")

    def __init__(
        self,
        ref: int,
        generation: int,
        mode: Mode,
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
