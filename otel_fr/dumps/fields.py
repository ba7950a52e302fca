"""Checks single fields of a file's entries. A value of the wrong kind becomes None (or empty); it raises no error."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from otel_fr.identity import MAX_RANKS
from otel_fr.stacks import is_library

if TYPE_CHECKING:  # rank monitors use this module, too, and do not need the match engine
    from otel_fr.match.model import Sizes

MAX_DIMENSIONS = 64
"""PyTorch's limit on a tensor's dimensions."""

_LARGEST = 1 << 62
"""Recorders write no larger number. A sum of two such numbers fits into 64 bits."""

_UNDEFINED = "UNKNOWN_SCALAR"
_MAX_DTYPES = 4096
_MAX_NAME = 1024
"""Characters of a file name or function name that are kept."""

_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "ComplexHalf": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16, "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of an element, by PyTorch's name of the scalar type."""

_MOST_BYTES = 1 << 62
"""Limit on the bytes of a call, exclusive: files may contain any size."""


def integer(value: object) -> int | None:
    """An integer, or a text that contains one, as in PyTorch's JSON. None for anything else."""
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST:
        return value
    return None


def members(ranks: Sequence[int]) -> tuple[int, ...]:
    """The members of a group. Empty, which means "not known", if a rank is not below `MAX_RANKS`."""
    return tuple(ranks) if max(ranks, default=0) < MAX_RANKS else ()


def exact(value: object) -> int:
    """Like `integer`, for a field that every entry must have.

    Raises:
        ValueError: the value is not an integer.
    """
    found = integer(value)
    if found is None:
        raise ValueError
    return found


def text(value: object) -> str | None:
    """A text. None for anything else."""
    return value if isinstance(value, str) else None


def short_text(value: object) -> str:
    """A text, cut to the length of a name. Empty for anything else."""
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def seconds(value: object, scale: float = 1.0) -> float | None:
    """A finite number, divided by ``scale``. None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0:
        with contextlib.suppress(OverflowError):
            return value / scale
    return None


def checked_sizes(shapes: Sizes, dtypes: tuple[str, ...]) -> Sizes:
    """The shapes. Empty if they are not shapes of integers that a recorder may write.

    ``((),)`` is a tensor without dimensions. If there is no dtype, it stands for no tensor.
    """
    if (shapes == ((),) and not dtypes) or not bounded_numbers(list(chain.from_iterable(shapes))):
        return ()
    return shapes


def dtypes(value: object) -> tuple[str, ...]:
    """Names of dtypes, one per tensor, not checked. The list is cut, because a small pickle can repeat a list."""
    return tuple(value[:_MAX_DTYPES]) if type(value) is list else ()


def checked_dtypes(names: tuple[object, ...]) -> tuple[str, ...]:
    """The values that are names."""
    return tuple(name for name in names if isinstance(name, str) and name)


def defined(sizes: Sizes, dtypes: tuple[str, ...]) -> tuple[Sizes, tuple[str, ...]]:
    """Leave out the tensors that PyTorch invents if a rank passes none, as in a scatter on all ranks except the root.

    Their dtype is `c10::ScalarType::Undefined`, which PyTorch prints as ``UNKNOWN_SCALAR``.
    """
    if _UNDEFINED not in dtypes or len(sizes) != len(dtypes):
        return sizes, dtypes
    kept = [(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True) if dtype != _UNDEFINED]
    return tuple([size for size, _ in kept]), tuple([dtype for _, dtype in kept])


def splits(value: object) -> tuple[int, ...] | None:
    """The split sizes of an all_to_all_single."""
    return tuple(value) if isinstance(value, list) and bounded_numbers(value) else None


def frame_text(frame: object) -> str:
    """A frame as ``"file:line function"``. Empty if the value is not a frame."""
    if not isinstance(frame, dict) or not isinstance(frame.get("filename"), str):
        return ""
    line = integer(frame.get("line")) or 0
    return f"{frame['filename'][:_MAX_NAME]}:{line} {short_text(frame.get('name'))}".rstrip()


def users_frame(frames: tuple[str, ...], whole: bool) -> str:
    """The innermost frame of the user's code. Empty if there is no frame. ``whole``: take the first frame."""
    for frame in () if whole else frames:
        if not is_library(frame.rpartition(":")[0]):
            return frame
    return frames[0] if frames else ""


def in_range(least: int, most: int) -> bool:
    """Return whether both are numbers that a recorder may write."""
    return -_LARGEST < least <= most < _LARGEST


def bounded_sizes(column: Sequence[Any], most: int) -> bool:
    """Return whether every value is a list of shapes of integers, with at most ``most`` numbers in total.

    A pickle can refer to one list many times, so a small file can describe unbounded data.
    """
    if not column:
        return True
    if set(map(type, column)) != {list}:
        return False
    count = sum(map(len, column))
    if count > most:
        return False
    shapes = list(chain.from_iterable(column))
    if not shapes:
        return True
    if set(map(type, shapes)) != {list}:
        return False
    widest = max(map(len, shapes))
    if widest > MAX_DIMENSIONS or widest * count > most:
        return False
    return bounded_numbers(list(chain.from_iterable(shapes)))


def bounded_numbers(column: Sequence[Any]) -> bool:
    """Return whether all values are integers that a recorder may write."""
    return not column or (set(map(type, column)) == {int} and in_range(min(column), max(column)))


def bounded_lists(column: Sequence[Any], most: int) -> bool:
    """Return whether every value is None or a list of short texts or integers, with at most ``most`` items in total."""
    if not column:
        return True
    kinds = set(map(type, column))
    if kinds != {list}:
        if not kinds <= {list, type(None)}:
            return False
        column = [value for value in column if value is not None]
    if sum(map(len, column)) > most:
        return False
    items = list(chain.from_iterable(column))
    types = set(map(type, items))
    return (
        bounded_numbers(items)
        if types == {int}
        else not types or (types == {str} and max(map(len, items)) <= MAX_DIMENSIONS)
    )


def bounded_scalars(column: Sequence[Any]) -> bool:
    """Return whether all values are short texts, booleans, numbers that a recorder may write, or None."""
    if not set(map(type, column)) <= {str, int, float, bool, type(None)}:
        return False
    return all(
        len(value) <= _MAX_NAME if type(value) is str else type(value) is not int or in_range(value, value)
        for value in set(column)
    )


def bytes_of(sizes: Sizes, dtypes: Sequence[str]) -> int | None:
    """Bytes of all tensors. None: not known. One dtype may stand for all tensors."""
    each = list(dtypes) * len(sizes) if len(dtypes) == 1 else list(dtypes)
    if not sizes or len(each) != len(sizes) or any(name not in _BYTES for name in each):
        return None
    found = sum(prod(shape) * _BYTES[name] for shape, name in zip(sizes, each, strict=True))
    return found if 0 <= found < _MOST_BYTES else None
