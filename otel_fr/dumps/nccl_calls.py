"""Which functions of NCCL PyTorch calls for a collective, and how NCCL counts the bytes.

Source: ProcessGroupNCCL.cpp of torch 2.6 to 2.14, and ext-profiler/inspector of NVIDIA/nccl.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from otel_fr.dumps.fields import bytes_of
from otel_fr.operations import GATHERING, LISTS, family, sides
from otel_fr.operations import outputs as outputs_of


class Arguments(Protocol):
    """The arguments of a call: a shape and a dtype for each tensor."""

    @property
    def operation(self) -> str: ...
    @property
    def input_sizes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def output_sizes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def input_dtypes(self) -> tuple[str, ...]: ...
    @property
    def output_dtypes(self) -> tuple[str, ...]: ...


def of_signature(of: Arguments) -> Iterator[tuple[str, int | None]]:
    """Yield the calls of NCCL's collective functions that one call makes.

    Each item is an operation, as in `DeviceCall.operation`, and its bytes (None: any number). Gather, scatter and
    all_to_all consist of NCCL's sends and receives and yield nothing. For lists of unequal sizes, PyTorch calls one
    broadcast or reduce for each rank.
    """
    inputs = _each(of.input_sizes, of.input_dtypes or of.output_dtypes)
    outputs = _each(of.output_sizes, of.output_dtypes or of.input_dtypes)
    function = family(of.operation)
    if function == "barrier":
        yield "all_reduce", None
    elif outputs_of(function) in ("same", "root"):
        yield from ((function, size) for size in inputs or outputs)
    elif function in LISTS:
        own, lists = sides(function, inputs, outputs)
        if of.operation in LISTS and len(set(lists)) > 1:
            yield from (("broadcast" if function in GATHERING else "reduce", size) for size in lists)
        else:
            yield from ((function, size) for size in own)


def _each(sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> list[int | None]:
    each = dtypes * len(sizes) if len(dtypes) == 1 else dtypes
    if len(each) != len(sizes):
        return [None] * len(sizes)
    return [bytes_of((shape,), (dtype,)) for shape, dtype in zip(sizes, each, strict=True)]
