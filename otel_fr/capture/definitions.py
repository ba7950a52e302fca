"""What calls with equal arguments have in common, computed at the first of them: for the ring, and for counting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from otel_fr.capture.completion import EndMode, end_mode
from otel_fr.capture.groups import ANY, LiveGroup
from otel_fr.capture.operations import REDUCE_OPS, Operator, flatten, scalar_type
from otel_fr.ring import SignatureDef


class TensorForm(NamedTuple):
    """What the ring keeps of a tensor. ``size``: in bytes."""

    shape: tuple[int, ...]
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's arguments, as far as they are recorded.

    Attributes:
        tensors: by position of the argument, lists flattened.
        device: type of the first tensor's device; "cpu" without tensors.
        reduce_op: number of ``ReduceOp.RedOpType``.
        root, peer: ranks in the group.
        unread: they could not be read; the rest is empty.
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
        """The tensors at these positions, in their order."""
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
    """In place of arguments that cannot be read: the call is still counted and recorded, with all of this unknown.

    A hole in the numbers would look as if the rank had left out a call.
    """
    devices = [device.type for device in process_group._device_types]
    device = devices[0] if devices else "cpu"
    return Arguments(tensors={position: [] for position in operator.tensors}, device=device, unread=True)


def definition_of(operator: Operator, group: LiveGroup, arguments: Arguments, backend: str) -> SignatureDef:
    """The definition of a call's arguments that the ring keeps."""
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
    """How many sequence and operation numbers PyTorch itself takes for a call with so many input tensors.

    As seen in the recorder of torch 2.13: gloo makes a reduce_scatter of all_reduces, one for each input, and a
    monitored_barrier moves the collective number by two on each rank, and the operation number by one for each send
    and receive between rank 0 and the others. Other backends take one for each call, and have no monitored_barrier.
    """
    if operator.name == "monitored_barrier_":
        if backend != "gloo":
            return 0, 1
        return 2, 2 * (group.size - 1) if group.rank == 0 else 2
    if backend == "gloo" and operator.name in ("reduce_scatter_", "reduce_scatter_tensor_coalesced_"):
        return max(1, inputs), max(1, inputs)
    return 1, 1


class CallKind(NamedTuple):
    """What is the same for all calls with one signature.

    Attributes:
        definition: for the ring; None: no collective, and not recorded.
        step, op_step: PyTorch's sequence and operation numbers that one call takes.
        coalesces: the backend gives all members of a batch one number.
        pair: (1 if it receives, peer or `ANY`, tag), for a send or receive.
    """

    definition: SignatureDef | None
    mode: EndMode
    step: int
    op_step: int
    timeout_ms: int
    coalesces: bool
    pair: tuple[int, int, int]


NOT_A_CALL = CallKind(None, EndMode.IGNORE, 0, 0, 0, False, (0, 0, 0))
"""Of meta tensors."""


def kind_of(operator: Operator, group: LiveGroup, arguments: Arguments, backend: str, timeout_ms: int) -> CallKind:
    """Describe a call. ``backend``, ``timeout_ms``: of the group for the tensors' device."""
    definition = definition_of(operator, group, arguments, backend)
    # An unread reduce_scatter has the list that is usual: a piece for each member.
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
