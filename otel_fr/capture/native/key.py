"""Decodes the key that the kernel makes from a call's arguments (kernel.cpp, ``Key``)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Final

from otel_fr.capture.definitions import Arguments, TensorForm
from otel_fr.capture.operations import Operator

_UNREAD: Final = 0xFFFFFFFF
_UNDEFINED: Final = (1 << 64) - 1


def is_unread(key: bytes) -> bool:
    """Return True if the kernel could not read the arguments."""
    (head,) = struct.unpack_from("<Q", key)
    return bool(head >> 32 == _UNREAD)


def arguments_of(
    operator: Operator, key: bytes, scalar_type: Callable[[int], str], device_type: Callable[[int], str]
) -> Arguments:
    """Return the arguments of the call that has this key.

    Args:
        scalar_type, device_type: return the names of torch's numbers.

    Raises:
        ValueError: this is not a key of the operator.
    """
    words = iter(struct.unpack(f"<{len(key) // 8}Q", key))
    try:
        return _read(operator, words, scalar_type, device_type)
    except StopIteration:
        raise ValueError(f"the key of {operator.name} ends too early") from None


def _read(
    operator: Operator, words: Iterator[int], scalar_type: Callable[[int], str], device_type: Callable[[int], str]
) -> Arguments:
    def signed() -> int:
        value = next(words)
        return value - (1 << 64) if value >> 63 else value

    head = next(words)
    reduce_op = head >> 32
    device = "cpu"
    found = False
    tensors: dict[int, list[TensorForm]] = {}
    for position in operator.tensors:
        forms = tensors[position] = []
        for _ in range(next(words) >> 1):
            word = next(words)
            if word == _UNDEFINED:
                continue
            if not found:
                device = device_type(word >> 8 & 0xFF)
                found = True
            shape = tuple([signed() for _ in range(word >> 40)])
            forms.append(TensorForm(shape, scalar_type(word & 0xFF), math.prod(shape) * (word >> 24 & 0xFFFF)))
    root, peer, tag = (signed() if at >= 0 else None for at in (operator.root, operator.peer, operator.tag))
    output_splits, input_splits = (
        tuple([signed() for _ in range(next(words))]) if at >= 0 else ()
        for at in (operator.output_splits, operator.input_splits)
    )
    return Arguments(
        tensors=tensors,
        device=device,
        reduce_op=reduce_op - 1 if reduce_op else None,
        root=root,
        peer=peer,
        tag=tag,
        output_splits=output_splits,
        input_splits=input_splits,
    )
