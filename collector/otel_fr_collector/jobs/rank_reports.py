"""The rank report (docs/telemetry.md): from the JSON text of an event's body to checked, bounded data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from otel_fr import identity
from otel_fr.match import Ending, Group, Signature
from otel_fr_collector.jobs.bounded import Cache
from otel_fr_collector.jobs.calls import (
    MAX_NAME,
    Interner,
    RankCall,
    read_names,
    read_sizes,
    read_splits,
    state_of,
    stream_of,
)

MAX_BODY = 4 << 20
"""Characters of a report."""
MAX_GROUPS = 4_096
MAX_GROUP_ID = 256
MAX_CALLS = 64
"""Calls read from each list of a report: as many as monitors send."""
MAX_RANKS = 65_536
MAX_RANK = 1_000_000
MAX_STACK = 65_536
"""Characters kept of a stack; a hundred frames are under 20,000."""
MAX_EXCEPTION = 16_384
MAX_PATH = 4_096
"""Linux's PATH_MAX."""

_members: Cache[str, tuple[int, ...]] = Cache(1_000_000)
"""Member lists by their text: every rank of a group sends the same, and one tuple serves them all."""

Json = dict[str, object]


@dataclass(slots=True)
class GroupReport:
    """Where the rank stands in one group. ``group`` has no ranks if the report does not name them."""

    group: Group
    enqueued: int = 0
    completed: int = 0
    issued: int = 0
    idle: float | None = None
    gone: bool = False


@dataclass(slots=True)
class Report:
    """One rank's report; times in seconds, ``RankCall.issued`` on the clock of the ``now`` it was parsed with."""

    rank: int
    number: int
    stall: float = 5.0
    groups: list[GroupReport] = field(default_factory=list)
    inflight: list[RankCall] = field(default_factory=list)
    inflight_more: int = 0
    failed: list[RankCall] = field(default_factory=list)
    last: RankCall | None = None
    idle: float | None = None
    stack: str = ""
    python_blocked: bool | None = None
    exception: str = ""
    exception_stack: str = ""
    exception_site: str = ""
    ending: Ending | None = None
    exit_code: int | None = None
    signal: int | None = None
    has_exited: bool = False
    site: str = ""
    file: str = ""


def parse_report(text: str, interner: Interner, *, now: float, wall: float) -> Report:
    """Read a report.

    Args:
        now: the collector's monotonic clock at arrival; wall: the Unix time then.

    Raises:
        ValueError: it is no report of this version, or a list in it is out of all proportion.
    """
    if len(text) > MAX_BODY:
        raise ValueError(f"report of more than {MAX_BODY} characters")
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("report is nested too deep") from error
    if not isinstance(data, dict) or data.get("v") != 1:
        raise ValueError("not a rank report of version 1")
    rank, number = _integer(data, "rank", -1), _integer(data, "n", -1)
    if not 0 <= rank <= MAX_RANK or number < 0:
        raise ValueError("report without a usable rank or number")
    groups = data.get("groups")
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise ValueError("report without a usable list of groups")
    report = Report(
        rank,
        number,
        stall=min(max(_number(data, "stall_s") or 5.0, 0.1), 86_400.0),
        groups=[_group(item) for item in groups if isinstance(item, dict) and _is_id(item.get("id"))],
        inflight=_calls(data.get("inflight"), rank, interner, now, wall),
        inflight_more=max(0, _integer(data, "inflight_more", 0)),
        failed=_calls(data.get("failed"), rank, interner, now, wall),
        idle=_number(data, "idle_s"),
        stack=_text(data, "stack")[:MAX_STACK],
        python_blocked=_flag(data, "python_blocked"),
        site=_text(data, "site", MAX_NAME),
        file=_text(data, "file", MAX_PATH),
    )
    last = data.get("last")
    if isinstance(last, dict):
        report.last = _call(last, rank, interner, now, wall)
    _read_end(data, report)
    return report


def _read_end(data: Json, report: Report) -> None:
    exception = data.get("exception")
    if isinstance(exception, dict):
        kind, message = _text(exception, "type"), _text(exception, "message")
        report.exception = (f"{kind}: {message}" if message else kind)[:MAX_EXCEPTION]
        report.exception_stack = _text(exception, "stack")[:MAX_STACK]
        report.exception_site = _text(exception, "site", MAX_NAME)
        report.ending = Ending.RAISED
    how = data.get("exit")
    if not isinstance(how, dict):
        return
    code, number = how.get("code"), _integer(how, "signal", 0)
    report.has_exited = True
    report.exit_code = code if isinstance(code, int) and how.get("known") is not False else None
    report.signal = number or None
    if number:
        report.ending = Ending.KILLED
    elif how.get("clean") is True or report.exit_code == 0:
        report.ending = Ending.CLEAN
    elif report.exception or report.exit_code is not None:
        report.ending = Ending.RAISED
    else:
        report.ending = Ending.GONE


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_GROUP_ID


def _ranks(text: str) -> tuple[int, ...]:
    known = _members.young.get(text)
    if known is None:
        ranks = tuple(identity.decode_ranks(text, limit=MAX_RANKS))
        known = _members.put(text, ranks, 1 + len(ranks) + len(text) // 32)
    return known


def _group(data: Json) -> GroupReport:
    name, description = _text(data, "name", MAX_NAME), _text(data, "desc", MAX_NAME)
    return GroupReport(
        Group(_text(data, "id"), name, description, _ranks(_text(data, "ranks"))),
        enqueued=_integer(data, "enq", 0),
        completed=_integer(data, "done", 0),
        issued=_integer(data, "issued", 0),
        idle=_number(data, "idle_s"),
        gone=_flag(data, "gone") or False,
    )


def _calls(value: object, rank: int, interner: Interner, now: float, wall: float) -> list[RankCall]:
    if not isinstance(value, list):
        return []
    return [_call(item, rank, interner, now, wall) for item in value[:MAX_CALLS] if isinstance(item, dict)]


def _call(data: Json, rank: int, interner: Interner, now: float, wall: float) -> RankCall:
    operation, error = _text(data, "op", MAX_NAME), _text(data, "err", MAX_NAME) or None
    peer = _optional(data, "peer")
    signature = interner.signature(
        Signature(
            operation,
            read_sizes(data.get("in")),
            read_sizes(data.get("out")),
            read_names(data.get("idt")),
            read_names(data.get("odt")),
            _text(data, "ro", MAX_NAME) or None,
            _optional(data, "root"),
            peer,
            _optional(data, "tag"),
            read_splits(data.get("isp")),
            read_splits(data.get("osp")),
            any_source=_flag(data, "any") is True or (operation == "recv" and peer is None),
        )
    )
    age, timeout = _number(data, "age_s"), _number(data, "timeout_ms")
    posted = _flag(data, "posted") is True  # nobody waits for it, so it does not age
    wait = _number(data, "wait_s")
    waited = None if posted else age if wait is None else wait
    return RankCall(
        rank=rank,
        record=_integer(data, "rec", 0),
        group=_text(data, "g", MAX_GROUP_ID),
        stream=stream_of(_text(data, "k"), operation),
        sequence_id=_integer(data, "seq", 0),
        signature=signature,
        state=state_of(_text(data, "st"), error),
        pair_index=_integer(data, "i", 0),
        site=interner.text(_text(data, "site")),
        error=error,
        timeout=None if timeout is None else timeout / 1_000,
        duration=_number(data, "dur_s"),
        gap=_number(data, "gap_s"),
        issued_wall=None if age is None else wall - age,
        issued=None if waited is None else now - waited,
        age=0.0 if posted else None,
    )


def _text(data: Json, key: str, limit: int | None = None) -> str:
    value = data.get(key)
    return value[:limit] if isinstance(value, str) else ""


def _integer(data: Json, key: str, default: int) -> int:
    value = data.get(key)
    return value if isinstance(value, int) and abs(value) < 2**63 else default


def _optional(data: Json, key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _number(data: Json, key: str) -> float | None:
    value = data.get(key)
    if isinstance(value, (int, float)) and abs(value) < 1e15 and math.isfinite(value):
        return float(value)
    return None


def _flag(data: Json, key: str) -> bool | None:
    value = data.get(key)
    return value if isinstance(value, bool) else None
