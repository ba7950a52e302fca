"""What each ``c10d::*`` operator is: its public name, and where its arguments are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_fr.ring import KIND_COLLECTIVE, KIND_MONITORED, KIND_P2P

NAMES: Final[Mapping[str, str]] = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""Operator to the name of ``torch.distributed``'s function. An operator that is not here is no collective."""

_SINGLE: Final = {
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""Functional collectives send one tensor through the coalesced operator: one name per operation."""

_INPUTS: Final = frozenset({"input_tensors", "input_tensor", "input_list", "inputs", "input"})
_OUTPUTS: Final = frozenset({"output_tensors", "output_tensor", "output_lists", "outputs", "output"})
_IN_PLACE: Final = frozenset({"tensors", "tensor"})

REDUCE_OPS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""By the number of ``ReduceOp.RedOpType``."""

_SCALAR_TYPES: Final = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu",
    "float4_e2m1fn_x2": "Float4_e2m1fn_x2",
    "qint8": "QInt8",
    "quint8": "QUInt8",
    "qint32": "QInt32",
}


def scalar_type(dtype: object) -> str:
    """PyTorch's scalar type name of a ``torch.dtype`` (c10/core/ScalarType.h); a new one: the dtype's own name."""
    name = str(dtype).removeprefix("torch.")
    return _SCALAR_TYPES.get(name, name)


class Operator(NamedTuple):
    """One operator. Positions are indexes of its arguments; -1: it has none such.

    Attributes:
        code: small number, one per operator.
        kind: ``KIND_*`` of the ring.
        tensors: positions of every tensor argument.
        inputs, outputs: positions of what is read and written.
    """

    name: str
    operation: str
    code: int
    kind: int
    tensors: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    group: int
    reduce_op: int
    root: int
    peer: int
    tag: int
    timeout: int
    output_splits: int
    input_splits: int

    @classmethod
    def of(cls, name: str, arguments: tuple[str, ...]) -> Operator:
        """Read an operator's schema: torch versions differ in the positions, not in the names.

        Raises:
            ValueError: the operator has no process group.
        """

        def at(*names: str) -> int:
            return next((index for index, argument in enumerate(arguments) if argument in names), -1)

        group = at("process_group")
        if group < 0:
            raise ValueError(f"c10d::{name} has no process group")
        kind = KIND_COLLECTIVE
        if name in ("send", "recv_", "recv_any_source_"):
            kind = KIND_P2P
        elif name == "monitored_barrier_":
            kind = KIND_MONITORED
        tensors = tuple(i for i, argument in enumerate(arguments) if argument in _INPUTS | _OUTPUTS | _IN_PLACE)
        inputs = tuple(i for i in tensors if arguments[i] not in _OUTPUTS)
        outputs = tuple(i for i in tensors if arguments[i] not in _INPUTS)
        if name in ("barrier", "monitored_barrier_"):
            inputs = outputs = ()  # their tensor only chooses the backend
        elif name == "send":
            outputs = ()
        elif kind == KIND_P2P:
            inputs = ()
        return cls(
            name=name,
            operation=NAMES[name],
            code=list(NAMES).index(name),
            kind=kind,
            tensors=tensors,
            inputs=inputs,
            outputs=outputs,
            group=group,
            reduce_op=at("reduce_op"),
            root=at("root_rank"),
            peer=at("dst", "src"),
            tag=at("tag"),
            timeout=at("timeout"),
            output_splits=at("output_split_sizes"),
            input_splits=at("input_split_sizes"),
        )

    def public_name(self, count: int) -> str:
        """The operation's name for a call with ``count`` output tensors."""
        return _SINGLE.get(self.operation, self.operation) if count == 1 else self.operation


def flatten(value: Any) -> Iterator[Any]:
    """The tensors of an argument: a tensor, a list of them, or a list of lists."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flatten(item)
    elif value is not None:
        yield value


def key_function(operator: Operator, tensor_type: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function from a call's arguments to a hashable that is equal for calls with equal signature in one group.

    It is on the training thread for every collective, so the common forms (one tensor in a list; two tensors) are
    written out, and nothing is computed that the key's owner can compute once.
    """
    code = operator.code
    reduce_op = operator.reduce_op
    extras = tuple(i for i in (operator.root, operator.peer, operator.tag) if i >= 0)
    splits = tuple(i for i in (operator.output_splits, operator.input_splits) if i >= 0)
    positions = operator.tensors

    def rest(args: tuple[Any, ...]) -> tuple[Any, ...]:
        values = tuple([args[i] for i in extras] + [tuple(args[i]) for i in splits])
        return (*values, args[reduce_op]._get_method("op")()) if reduce_op >= 0 else values

    def general(args: tuple[Any, ...]) -> tuple[Any, ...]:
        parts: list[Any] = [code]
        for position in positions:
            value = args[position]
            if type(value) is list:
                parts.append(len(value))
                parts.extend((item.shape, item.dtype, item.device) for item in flatten(value))
            else:
                parts.append((value.shape, value.dtype, value.device))
        parts.append(rest(args))
        return tuple(parts)

    if len(positions) == 1:
        (position,) = positions

        def one_list(args: tuple[Any, ...]) -> tuple[Any, ...]:
            value = args[position]
            if type(value) is not list or len(value) != 1:
                return general(args)
            tensor = value[0]
            if reduce_op >= 0 and not extras:
                return code, tensor.shape, tensor.dtype, tensor.device, args[reduce_op]._get_method("op")()
            return code, tensor.shape, tensor.dtype, tensor.device, rest(args)

        return one_list

    if len(positions) == 2:
        first, second = positions

        def two(args: tuple[Any, ...]) -> tuple[Any, ...]:
            a = args[first]
            b = args[second]
            if isinstance(a, tensor_type) and isinstance(b, tensor_type):
                extra = rest(args) if extras or splits or reduce_op >= 0 else None
                return code, a.shape, a.dtype, b.shape, b.dtype, b.device, extra
            return general(args)

        return two

    return general
