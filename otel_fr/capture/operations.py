"""Describes each ``c10d::*`` operator: its public name, and the positions of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from otel_fr.operations import OPERATORS
from otel_fr.ring import KIND_COLLECTIVE, KIND_MONITORED, KIND_P2P

_CLASS: Final = "__torch__.torch.classes.c10d."
PROCESS_GROUP: Final = f"{_CLASS}ProcessGroup"
WORK: Final = f"{_CLASS}Work"
_REDUCE_OP: Final = f"{_CLASS}ReduceOp"
_TENSORS: Final = frozenset({"Tensor", "List[Tensor]", "List[List[Tensor]]"})
MAX_TENSORS: Final = 4
"""How many tensor arguments of an operator are recorded: `native/api.h` has room for 4. torch's operators have 2."""

_SINGLE: Final = {
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""Functional collectives pass a single tensor to the coalesced operator. Such calls get the plain operation's name."""

REDUCE_OPS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""Names by their number in ``ReduceOp.RedOpType``."""

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
    """Return PyTorch's scalar type name of a ``torch.dtype`` (c10/core/ScalarType.h), or its own name if unknown."""
    name = str(dtype).removeprefix("torch.")
    return _SCALAR_TYPES.get(name, name)


class Argument(NamedTuple):
    """An argument in an operator's schema. ``type`` is the type as torch prints it."""

    name: str
    type: str


class Operator(NamedTuple):
    """One operator. Positions are indexes of its arguments; -1: it has no such argument.

    Attributes:
        code: small number, unique for each operator.
        kind: ``KIND_*`` of the ring.
        returns_work: False if the call has ended when the operator returns.
        tensors: positions of all tensor arguments.
        inputs, outputs: positions of tensors that are read and written.
    """

    name: str
    operation: str
    code: int
    kind: int
    returns_work: bool
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
    def of(cls, name: str, arguments: Sequence[Argument], returns_work: bool, code: int) -> Operator:
        """Read an operator's schema. torch versions differ in the positions of arguments, not in names and types.

        An operator that is not in `OPERATORS` is a send or receive if it has a tag, else a collective. A tensor whose
        name contains neither "input" nor "output" is both.

        Raises:
            ValueError: the operator is no call of a process group: it has no group, or neither tensors nor a Work.
        """

        def at(type_: str, *names: str) -> int:
            found = (i for i, item in enumerate(arguments) if item.type == type_ and (not names or item.name in names))
            return next(found, -1)

        group = at(PROCESS_GROUP)
        tensors = tuple(i for i, item in enumerate(arguments) if item.type in _TENSORS)[:MAX_TENSORS]
        if group < 0 or not (tensors or returns_work):
            raise ValueError(f"c10d::{name} is no call of a process group")
        peer, tag = at("int", "dst", "src"), at("int", "tag")
        kind = KIND_COLLECTIVE
        if tag >= 0:
            kind = KIND_P2P
        elif name == "monitored_barrier_":
            kind = KIND_MONITORED
        operation = OPERATORS.get(name) or name.strip("_") or name
        inputs = tuple(i for i in tensors if "output" not in arguments[i].name)
        outputs = tuple(i for i in tensors if "input" not in arguments[i].name)
        if name in ("barrier", "monitored_barrier_"):
            inputs = outputs = ()  # their tensor only chooses the backend
        elif kind == KIND_P2P:
            operation = "send" if peer >= 0 and arguments[peer].name == "dst" else "recv"
            inputs, outputs = (inputs, ()) if operation == "send" else ((), outputs)
        return cls(
            name=name,
            operation=operation,
            code=code,
            kind=kind,
            returns_work=returns_work,
            tensors=tensors,
            inputs=inputs,
            outputs=outputs,
            group=group,
            reduce_op=at(_REDUCE_OP),
            root=at("int", "root_rank", "root"),
            peer=peer if kind == KIND_P2P else -1,
            tag=tag,
            timeout=at("int", "timeout"),
            output_splits=at("List[int]", "output_split_sizes"),
            input_splits=at("List[int]", "input_split_sizes"),
        )

    def public_name(self, count: int) -> str:
        """Return the operation's name for a call with ``count`` output tensors."""
        return _SINGLE.get(self.operation, self.operation) if count == 1 else self.operation


def flatten(value: Any) -> Iterator[Any]:
    """Yield the tensors of an argument, which is a tensor, a list of tensors, or a list of such lists."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flatten(item)
    elif value is not None:
        yield value


def key_of(operator: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a hashable key that is equal for calls with equal signatures in one group."""
    key: list[Any] = [operator.code]
    for position in operator.tensors:
        tensors = list(flatten(args[position]))
        key.append(len(tensors))
        key += [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
    key += [args[i] for i in (operator.root, operator.peer, operator.tag) if i >= 0]
    key += [tuple(args[i]) for i in (operator.output_splits, operator.input_splits) if i >= 0]
    if operator.reduce_op >= 0:
        key.append(args[operator.reduce_op]._get_method("op")())
    return tuple(key)
