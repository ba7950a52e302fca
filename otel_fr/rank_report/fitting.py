"""Sections within the bounds of their types: what a rank says may be longer or larger than a reader takes."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from msgspec import Struct, inspect

from otel_fr.encodable import encodable

_S = TypeVar("_S", bound=Struct)


def fitted(section: _S) -> _S:
    """The section, with texts and lists cut, lone surrogates replaced, and numbers that are too large, too small or
    none left out (null) or, where null is no value, as large or as small as they may be.
    """
    found: _S = _fitted(_type_of(type(section)), section)
    return found


@cache
def _type_of(section: type[Struct]) -> inspect.Type:
    return inspect.type_info(section)


def _fitted(kind: inspect.Type, value: Any) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _fitted(kind.type, value)
    if isinstance(kind, inspect.UnionType):  # of a type and null
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
        return max(kind.ge, min(kind.le, value))  # the upper bound, where it is NaN
    return value
