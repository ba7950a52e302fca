"""OTLP resources and spans: read in one pass over their attributes into what the runs keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr import semconv as names
from otel_fr.match import Group, State
from otel_fr_collector.calls import MAX_TEXT, Interner, Part, read_names, state_of, stream_of
from otel_fr_collector.report import MAX_RANK
from otel_fr_collector.runs import RunId

_TEXTS = frozenset(
    {names.OPERATION, names.KIND, names.STATE, names.INPUT_SIZES, names.OUTPUT_SIZES, names.REDUCE_OP}
    | {names.INPUT_SPLITS, names.OUTPUT_SPLITS, names.GROUP_ID, names.GROUP_NAME, names.GROUP_DESCRIPTION}
    | {names.CODE_FUNCTION, names.CODE_FILE, names.ERROR_TYPE}
)
_NUMBERS = frozenset(
    {names.SEQUENCE_ID, names.RECORD_ID, names.ROOT, names.PEER, names.TAG, names.PAIR_INDEX, names.TIMEOUT}
    | {names.GROUP_SIZE, names.CODE_LINE}
)
_LISTS = frozenset({names.INPUT_DTYPES, names.OUTPUT_DTYPES})
MAX_NAME = 1_024
"""Characters of a job's, host's or service's name that are kept."""


@dataclass(frozen=True)
class Origin:
    """Which rank of which run a resource speaks for."""

    run: RunId
    rank: int
    world_size: int | None = None
    host: str = ""
    resource: dict[str, str] = field(default_factory=dict, compare=False)


def read_origin(resource: Resource) -> Origin | None:
    """The rank a resource names; None: it names none, so what it sends is not ours to judge."""
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for item in resource.attributes:
        kind = item.value.WhichOneof("value")
        if kind == "string_value":
            texts[item.key] = item.value.string_value[:MAX_NAME]
        elif kind == "int_value":
            numbers[item.key] = item.value.int_value
    rank = numbers.get(names.RANK)
    if rank is None or not 0 <= rank <= MAX_RANK:
        return None
    job, attempt = texts.get(names.JOB_ID, ""), numbers.get(names.JOB_ATTEMPT, 0)
    run = texts.get(names.RUN_ID, "") or f"{job}/{attempt}"
    kept = {key: value for key, value in texts.items() if key in (names.SERVICE_NAME, names.JOB_ID, names.RUN_ID)}
    world = numbers.get(names.WORLD_SIZE)
    return Origin(RunId(job, attempt, run), rank, world, texts.get(names.HOST_NAME, ""), kept)


def read_span(span: Span, origin: Origin, interner: Interner) -> tuple[Part, Group, int] | None:
    """A span as (the rank's call, its group without members, the group's size or 0); None: it is no collective's.

    Raises:
        ValueError: an attribute that a call cannot do without is not there.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for item in span.attributes:
        key = item.key
        if key in _TEXTS:
            texts[key] = item.value.string_value
        elif key in _NUMBERS:
            numbers[key] = item.value.int_value
        elif key in _LISTS:
            lists[key] = _names(item.value)
    if names.GROUP_ID not in texts:
        return None
    operation, group_id = texts.get(names.OPERATION, ""), texts.get(names.GROUP_ID, "")
    sequence = numbers.get(names.SEQUENCE_ID, -1)
    if not operation or not group_id or sequence < 0:
        raise ValueError(f"span {span.name[:80]!r} has no operation, process group id or sequence id")
    text = texts.get
    number = numbers.get
    signature = interner.from_texts(
        (
            operation,
            text(names.INPUT_SIZES, ""),
            text(names.OUTPUT_SIZES, ""),
            lists.get(names.INPUT_DTYPES, ()),
            lists.get(names.OUTPUT_DTYPES, ()),
            text(names.REDUCE_OP),
            number(names.ROOT),
            number(names.PEER),
            number(names.TAG),
            text(names.INPUT_SPLITS, ""),
            text(names.OUTPUT_SPLITS, ""),
        )
    )
    error = text(names.ERROR_TYPE)
    state = state_of(text(names.STATE, "completed"), error)
    started = span.start_time_unix_nano / 1e9
    duration = max(0, span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    timeout = number(names.TIMEOUT)
    file = text(names.CODE_FILE)
    part = Part(
        origin.rank,
        number(names.RECORD_ID, 0),
        group_id,
        stream_of(text(names.KIND, ""), operation),
        sequence,
        signature,
        state,
        number(names.PAIR_INDEX, 0),
        interner.text(f"{file}:{number(names.CODE_LINE, 0)} {text(names.CODE_FUNCTION, '')}") if file else "",
        error,
        None if timeout is None else timeout / 1_000,
        None if state is State.IN_FLIGHT else duration,
        None,
        started,
        None,
        duration if state is State.IN_FLIGHT else None,
    )
    group = Group(group_id, text(names.GROUP_NAME, ""), text(names.GROUP_DESCRIPTION, ""), ())
    return part, group, max(0, number(names.GROUP_SIZE, 0))


def find_text(attributes: Iterable[KeyValue], key: str) -> str:
    """A text attribute's value, or ""."""
    return next((item.value.string_value for item in attributes if item.key == key), "")


def _names(value: AnyValue) -> tuple[str, ...]:
    if value.HasField("array_value"):
        return tuple(item.string_value for item in value.array_value.values)
    text = value.string_value
    try:
        return read_names(json.loads(text)) if text and len(text) <= MAX_TEXT else ()
    except (ValueError, RecursionError):
        return ()
