"""Brief rank reports read at once: the rank moves, and only its counts are news (`otel_fr.monitor.brief_reports`).

Nearly all reports of a large job are such. This is a shorter way to the state that `otel_fr.rank_report.parse` and
`Run.add_report` lead to, for reports that say nothing else. `read` decodes the JSON into typed fields and checks their
bounds; what does not fit goes the general way, where it counts as absent, is cut, or is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from otel_fr.encodable import load_json
from otel_fr.rank_report import (
    DEFAULT_INTERVAL,
    DEFAULT_PEER_TIMEOUT,
    INTERVALS,
    MAX_FINGERPRINT,
    MAX_GROUP_ID,
    MAX_GROUPS,
    MAX_NUMBER,
    MAX_RANK,
    PEER_TIMEOUTS,
    STALL_SECONDS,
)
from otel_fr.rank_report.forms import MAX_NAME

_MARK: Final = '"brief"'
_MAX_LENGTH: Final = 64 << 10
"""Characters of a report that is read here; one with 300 groups has fewer."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
_Empty = Annotated[list[None], msgspec.Meta(max_length=0)]


class BriefGroup(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A process group's id, and the rank's counts in it: see `otel_fr.rank_report.ReportedGroup`."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GROUP_ID)]
    enq: _Count
    done: _Count
    p2p: _Count
    issued: _Count
    ended: _Count
    gone: bool
    fp: Annotated[list[_Count], msgspec.Meta(max_length=MAX_FINGERPRINT)] = []


class BriefReport(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A report with no call in it; the names are the keys of `otel_fr.rank_report.RankReport`."""

    v: Literal[1]
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
    stall_s: Annotated[float, msgspec.Meta(ge=STALL_SECONDS[0], le=STALL_SECONDS[1])]
    groups: Annotated[list[BriefGroup], msgspec.Meta(max_length=MAX_GROUPS)]
    inflight: _Empty
    inflight_more: Literal[0]
    failed: _Empty
    idle_s: _Seconds
    creations: bool = False
    peer_s: Annotated[float, msgspec.Meta(ge=PEER_TIMEOUTS[0], le=PEER_TIMEOUTS[1])] = DEFAULT_PEER_TIMEOUT
    step: Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)] | None = None
    step_s: _Seconds | None = None
    here: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    every_s: Annotated[float, msgspec.Meta(ge=INTERVALS[0], le=INTERVALS[1])] = DEFAULT_INTERVAL
    brief: Literal[True] = True


UNREAD: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises. ValueError: the text is not one that UTF-8 can encode."""
_decode = msgspec.json.Decoder(BriefReport).decode
_decode_any = msgspec.json.Decoder().decode


def read(text: str) -> BriefReport | None:
    """A brief report; None: it is none, or not one that says nothing but counts."""
    if _MARK not in text or len(text) > _MAX_LENGTH:
        return None
    try:
        return _decode(text)
    except UNREAD:
        return None


def load(text: str) -> Any:
    """As `otel_fr.encodable.load_json`, four times as fast; what msgspec does not take is left to that."""
    try:
        return _decode_any(text)
    except UNREAD:
        return load_json(text)
