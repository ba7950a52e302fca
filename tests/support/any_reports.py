"""Rank reports with arbitrary values. They follow the schema, so new keys are covered, too."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec import inspect

from otel_fr.rank_report import RankReport, Section

_S = TypeVar("_S", bound=Section)

_ANY_TEXT = st.sampled_from(["", "x", "a\udcff\N{ROCKET}"])
_LONG = 70_000
"""Characters of the longest texts, even where a bound is larger, as for the ranks of groups."""
_ANY_NUMBER = st.sampled_from([0, 1, -1, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63)])
_ANY_FLOAT = st.sampled_from([0.0, 0.5, -1.0, 3, 1e300, math.inf, -math.inf, math.nan])


def sections(kind: type[_S], *, within: bool = True) -> st.SearchStrategy[_S]:
    """Sections of a kind. Without ``within`` the values have the right types, but may be out of bounds."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {field.name: values(field.type, within) for field in info.fields}
    return st.builds(kind, **fields)


def values(kind: inspect.Type, within: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, inspect.Metadata):
        return values(kind.type, within)
    if isinstance(kind, inspect.UnionType):
        return st.none() | values(kind.types[0], within)
    if isinstance(kind, inspect.StructType):
        return sections(kind.cls, within=within)
    if isinstance(kind, inspect.VarTupleType):
        return lists(kind, within)
    if isinstance(kind, inspect.StrType):
        most = kind.max_length
        assert most is not None, "a text without a bound"
        return st.text(max_size=min(most, 20)) if within else _ANY_TEXT | st.just("\udcff" * min(most + 1, _LONG))
    if isinstance(kind, inspect.IntType):
        assert kind.ge is not None, "a number without a bound"
        return st.integers(kind.ge, kind.le) if within else _ANY_NUMBER
    if isinstance(kind, inspect.FloatType):
        assert kind.ge is not None, "a number without a bound"
        return st.floats(kind.ge, kind.le) if within else _ANY_FLOAT
    assert isinstance(kind, inspect.BoolType), kind
    return st.booleans()


def lists(kind: inspect.VarTupleType, within: bool) -> st.SearchStrategy[tuple[Any, ...]]:
    """Short lists. Without ``within`` also lists of equal items that are too long."""
    most = kind.max_length
    assert most is not None, "a list without a bound"
    items = values(kind.item_type, within)
    short = st.lists(items, max_size=2 if within else 1).map(tuple)
    is_large = isinstance(kind.item_type, inspect.StructType)
    return short if within or is_large else short | items.map(lambda item: (item,) * (most + 1))


reports = sections(RankReport)
