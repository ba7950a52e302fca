"""Fits sections to the bounds of their types: a rank's values may be longer or larger than a reader accepts."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from msgspec import Struct, inspect

from otel_fr.encodable import encodable

_S = TypeVar("_S", bound=Struct)


def fitted(section: _S) -> _S:
    """Return the section within its bounds.

    Texts and lists are cut, and lone surrogates are replaced. Numbers that are too large, too small or NaN become null
    or, if null is not allowed, the largest or smallest possible value.
    """
    found: _S = _fitted(_type_of(type(section)), section)
    return found


@cache
def _type_of(section: type[Struct]) -> inspect.Type:
    return inspect.type_info(section)


def _fitted(kind: inspect.Type, value: Any) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _fitted(kind.type, value)
    if isinstance(kind, inspect.UnionType):  # a type or null
        found = None if value is None else _fitted(kind.types[0], value)
        return None if isinstance(value, (int, float)) and found != value else found
    if isinstance(kind, inspect.StructType):
        return kind.cls(*[_fitted(field.type, getattr(value, field.name)) for field in kind.fields])
    if isinstance(kind, inspect.VarTupleType):
        return tuple([_fitted(kind.item_type, item) for item in value[: kind.max_length]])
    if isinstance(kind, inspect.StrType):
        return encodable(value)[: kind.max_length]
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        assert kind.ge is not None
        assert kind.le is not None
        return max(kind.ge, min(kind.le, value))  # NaN becomes the upper bound
    return value
