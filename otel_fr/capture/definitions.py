"""Computes what calls with equal arguments have in common, at the first such call: for the ring, and for counting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from otel_fr.capture.completion import EndMode, end_mode
from otel_fr.capture.groups import ANY, LiveGroup
from otel_fr.capture.operations import REDUCE_OPS, Operator, flatten, scalar_type
from otel_fr.ring import SignatureDef


class TensorForm(NamedTuple):
    """The part of a tensor's description that the ring keeps. ``size`` is in bytes."""

    shape: tuple[int, ...]
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's arguments, as far as they are recorded.

    Attributes:
        tensors: flattened lists, by position of the argument.
        device: type of the first tensor's device; "cpu" without tensors. If unread, the group's first device type.
        reduce_op: number of ``ReduceOp.RedOpType``.
        root, peer: ranks in the group.
        unread: True if the arguments could not be read. The other fields are empty then.
    """

    tensors: dict[int, list[TensorForm]]
    device: str
    reduce_op: int | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    output_splits: tuple[int, ...] = ()
    input_splits: tuple[int, ...] = ()
    unread: bool = False

    def forms(self, positions: Iterable[int]) -> list[TensorForm]:
        """Return the tensors at these positions, in this order."""
        return [form for position in positions for form in self.tensors[position]]


def arguments_of(operator: Operator, args: tuple[Any, ...]) -> Arguments:
    """Read the arguments of an operator."""

    def at(position: int) -> Any:
        return args[position] if position >= 0 else None

    found = {position: list(flatten(args[position])) for position in operator.tensors}
    forms = {
        position: [
            TensorForm(
                tuple(int(n) for n in tensor.shape), scalar_type(tensor.dtype), tensor.numel() * tensor.element_size()
            )
            for tensor in tensors
        ]
        for position, tensors in found.items()
    }
    first = next((tensor for tensors in found.values() for tensor in tensors), None)
    return Arguments(
        tensors=forms,
        device="cpu" if first is None else first.device.type,
        reduce_op=args[operator.reduce_op]._get_method("op")() if operator.reduce_op >= 0 else None,
        root=at(operator.root),
        peer=at(operator.peer),
        tag=at(operator.tag),
        output_splits=tuple(at(operator.output_splits) or ()),
        input_splits=tuple(at(operator.input_splits) or ()),
    )


def unread_arguments(operator: Operator, process_group: Any) -> Arguments:
    """Return placeholders for arguments that cannot be read. The call is still counted and recorded.

    A gap in the sequence numbers would look as if the rank had left out a call.
    """
    devices = [device.type for device in process_group._device_types]
    device = devices[0] if devices else "cpu"
    return Arguments(tensors={position: [] for position in operator.tensors}, device=device, unread=True)


def definition_of(operator: Operator, group: LiveGroup, arguments: Arguments, backend: str) -> SignatureDef:
    """Return the definition of a call's arguments for the ring."""
    inputs = arguments.forms(operator.inputs)
    outputs = arguments.forms(operator.outputs)
    number = arguments.reduce_op
    reduce_op = None
    if number is not None:
        reduce_op = REDUCE_OPS[number] if 0 <= number < len(REDUCE_OPS) else str(number)
    return SignatureDef(
        operation=operator.public_name(len(outputs)),
        backend=backend,
        input_sizes=tuple(form.shape for form in inputs),
        output_sizes=tuple(form.shape for form in outputs),
        input_dtypes=tuple(form.dtype for form in inputs),
        output_dtypes=tuple(form.dtype for form in outputs),
        reduce_op=reduce_op,
        root=None if arguments.root is None else group.global_rank(arguments.root),
        peer=None if arguments.peer is None else group.global_rank(arguments.peer),
        tag=arguments.tag,
        input_splits=arguments.input_splits or None,
        output_splits=arguments.output_splits or None,
        input_bytes=sum(form.size for form in inputs),
        output_bytes=sum(form.size for form in outputs),
        any_source=operator.operation == "recv" and operator.peer < 0,
        truncated=arguments.unread,
    )


def steps_of(operator: Operator, backend: str, group: LiveGroup, inputs: int) -> tuple[int, int]:
    """Return how many sequence and operation numbers PyTorch itself uses for a call with ``inputs`` input tensors.

    As seen in the recorder of torch 2.13: gloo implements reduce_scatter with one all_reduce for each input. A
    monitored_barrier increases the collective number by two on each rank, and the operation number by one for each
    send and receive between rank 0 and the others. Other backends use one number for each call, and have no
    monitored_barrier.
    """
    if operator.name == "monitored_barrier_":
        if backend != "gloo":
            return 0, 1
        return 2, 2 * (group.size - 1) if group.rank == 0 else 2
    if backend == "gloo" and operator.name in ("reduce_scatter_", "reduce_scatter_tensor_coalesced_"):
        return max(1, inputs), max(1, inputs)
    return 1, 1


class CallKind(NamedTuple):
    """Properties that all calls with one signature share.

    Attributes:
        definition: for the ring; None: the call is no collective, and is not recorded.
        step, op_step: how many of PyTorch's sequence and operation numbers one call uses.
        coalesces: True if the backend gives all members of a batch one number.
        pair: for a send or receive: (1 if it receives, peer or `ANY`, tag).
    """

    definition: SignatureDef | None
    mode: EndMode
    step: int
    op_step: int
    timeout_ms: int
    coalesces: bool
    pair: tuple[int, int, int]


NOT_A_CALL = CallKind(None, EndMode.IGNORE, 0, 0, 0, False, (0, 0, 0))
"""The kind of calls with meta tensors."""


def kind_of(operator: Operator, group: LiveGroup, arguments: Arguments, backend: str, timeout_ms: int) -> CallKind:
    """Describe a call. ``backend`` and ``timeout_ms`` are what the group has for the tensors' device."""
    definition = definition_of(operator, group, arguments, backend)
    # Assume that an unread reduce_scatter has the usual list: a piece for each member.
    inputs = group.size if arguments.unread and operator.name == "reduce_scatter_" else len(definition.input_sizes)
    step, op_step = steps_of(operator, backend, group, inputs)
    peer = ANY if definition.peer is None else definition.peer
    return CallKind(
        definition=definition,
        mode=end_mode(backend, operator.returns_work),
        step=step,
        op_step=op_step,
        timeout_ms=timeout_ms,
        coalesces=backend != "gloo",
        pair=(int(definition.operation == "recv"), peer, definition.tag or 0),
    )
