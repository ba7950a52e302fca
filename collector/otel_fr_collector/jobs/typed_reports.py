"""Rank reports decoded into typed objects, whose types and bounds are checked by the decoder.

The types are made from the one definition of a rank report (`otel_fr.rank_report`). A report that is within all bounds,
as monitors send them, is read in a fifth of the time; what is not goes the general way, where it counts as absent, is
cut, or is an error.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from otel_fr import rank_report
from otel_fr.rank_report.forms import Exact, keys_of
from otel_fr_collector.jobs.brief_reports import UNREAD, load

_MAX_LENGTH: Final = 64 << 10
"""Characters of a report that is read here."""


def _type_of(exact: Exact) -> Any:
    """The annotation with which msgspec takes what the form takes unchanged."""
    kind: Any = exact.kind
    if issubclass(kind, tuple):
        kind = _struct_of(kind)
    elif kind is str:
        kind = Annotated[str, msgspec.Meta(min_length=_whole(exact.least), max_length=_whole(exact.most))]
    elif kind is not bool:
        kind = Annotated[kind, msgspec.Meta(ge=exact.least, le=exact.most)]
    for most in reversed(exact.lists):
        kind = Annotated[tuple[kind, ...], msgspec.Meta(max_length=most)]
    return kind | None if exact.is_optional else kind


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


@functools.cache
def _struct_of(section: Any) -> Any:
    """A type with the attributes of a section; unknown keys are passed over."""
    names: tuple[str, ...] = section._fields
    fields: list[Any] = []
    keys = {}
    for name, (key, default) in zip(names, keys_of(section), strict=True):
        kind = _type_of(key.form.exact)
        fields.append((name, kind) if key.required else (name, kind, default))
        keys[name] = key.name
    return msgspec.defstruct(section.__name__, fields, rename=keys, gc=False, kw_only=True)


_Group: Final = msgspec.defstruct(
    "Group",
    [("id", Annotated[str, msgspec.Meta(min_length=1, max_length=rank_report.MAX_GROUP_ID)])],
    bases=(_struct_of(rank_report.ReportedGroup),),
    gc=False,
    kw_only=True,
)
"""A group without a usable id is left out of a report, so it is not read here."""
_Report: Final = msgspec.defstruct(
    "Report",
    [
        (rank_report.VERSION_KEY, Literal[1]),
        ("groups", Annotated[tuple[_Group, ...], msgspec.Meta(max_length=rank_report.MAX_GROUPS)]),  # type: ignore[valid-type]
    ],
    bases=(_struct_of(rank_report.RankReport),),
    gc=False,
    kw_only=True,
)
_decode = msgspec.json.Decoder(_Report).decode


def read(text: str) -> rank_report.RankReport | None:
    """An object with the attributes of a `RankReport`; None: to be read by `otel_fr.rank_report.parse`."""
    if len(text) > _MAX_LENGTH:
        return None
    try:
        return cast("rank_report.RankReport", _decode(text))
    except UNREAD:
        return None


def read_report(text: str) -> rank_report.RankReport:
    """As `otel_fr.rank_report.parse`, which reads what is not read here. Errors as there."""
    return read(text) or rank_report.parse(text, load)
