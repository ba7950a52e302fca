"""Definitions of signatures for the ring, from the arguments of an operator; computed once for equal calls."""

from __future__ import annotations

from typing import Any

from otel_fr.capture.groups import LiveGroup
from otel_fr.capture.operations import REDUCE_OPS, Operator, flatten, scalar_type
from otel_fr.ring import SignatureDef


def definition_of(operator: Operator, group: LiveGroup, args: tuple[Any, ...], backend: str) -> SignatureDef:
    """The definition of a call's arguments that the ring keeps."""
    inputs = [tensor for position in operator.inputs for tensor in flatten(args[position])]
    outputs = [tensor for position in operator.outputs for tensor in flatten(args[position])]

    def rank_at(position: int) -> int | None:
        return group.global_rank(args[position]) if position >= 0 else None

    def splits_at(position: int) -> tuple[int, ...] | None:
        return tuple(args[position]) or None if position >= 0 else None

    reduce_op = None
    if operator.reduce_op >= 0:
        number = args[operator.reduce_op]._get_method("op")()
        reduce_op = REDUCE_OPS[number] if 0 <= number < len(REDUCE_OPS) else str(number)
    return SignatureDef(
        operation=operator.public_name(len(outputs)),
        backend=backend,
        input_sizes=tuple(tuple(int(n) for n in tensor.shape) for tensor in inputs),
        output_sizes=tuple(tuple(int(n) for n in tensor.shape) for tensor in outputs),
        input_dtypes=tuple(scalar_type(tensor.dtype) for tensor in inputs),
        output_dtypes=tuple(scalar_type(tensor.dtype) for tensor in outputs),
        reduce_op=reduce_op,
        root=rank_at(operator.root),
        peer=rank_at(operator.peer),
        tag=args[operator.tag] if operator.tag >= 0 else None,
        input_splits=splits_at(operator.input_splits),
        output_splits=splits_at(operator.output_splits),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
        output_bytes=sum(tensor.numel() * tensor.element_size() for tensor in outputs),
        any_source=operator.name == "recv_any_source_",
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
