"""JSON from outside (a database, an HTTP answer, a file) as a TypedDict, checked once when it enters."""

from __future__ import annotations

import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

_T = TypeVar("_T")


def typed(kind: type[_T], value: object) -> _T:
    """Check that the value's keys have the types of the TypedDict ``kind``, and return the value.

    A key that may be None may be absent, as in data that an older version has written; it is then None, also in objects
    inside the value. Further keys stay. If a type is a literal, unlisted values of its kind are accepted: a newer
    version may have them.

    Raises:
        ValueError: the value has another form; the text names the first wrong key.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{kind.__name__} is an object, not {type(value).__name__}")
    found: Any = dict(value)
    for key, wanted in _hints(cast("Any", kind)).items():
        if not _fits(found.setdefault(key, None), wanted):
            raise ValueError(f"{kind.__name__}: {key!r} is missing or of another type")
    return found  # type: ignore[no-any-return]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, wanted: Any) -> bool:
    """For types of JSON: bool, int, float, str, None, unions and literals of them, lists, dicts by text, TypedDicts."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return type(value) in map(type, parts)
    if origin is list:
        return isinstance(value, list) and _all_fit(value, parts[0])
    if origin is dict:
        return isinstance(value, dict) and _all_fit(list(value.values()), parts[1])
    if is_typeddict(wanted):
        return isinstance(value, dict) and all(
            _fits(value.setdefault(key, None), part) for key, part in _hints(wanted).items()
        )
    return wanted is Any or type(value) is wanted


def _all_fit(items: list[object], wanted: Any) -> bool:
    if wanted in (int, str):  # lists of thousands of ranks: one look at each item's type
        return set(map(type, items)) <= {wanted}
    return all(_fits(item, wanted) for item in items)
