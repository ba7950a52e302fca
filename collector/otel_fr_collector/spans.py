"""OTLP resources and spans, read into what the runs keep; what many spans have in common is read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv as names
from otel_fr.match import Group, Signature, State
from otel_fr.match.model import Stream
from otel_fr_collector.bounded import Cache
from otel_fr_collector.calls import (
    MAX_NAME,
    MAX_TENSORS,
    Interner,
    parse_json,
    read_names,
    read_sizes,
    read_splits,
    state_of,
    stream_of,
)
from otel_fr_collector.report import MAX_RANK
from otel_fr_collector.runs import RunId
from otel_fr_collector.wire import RawSpan

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
_OF_ONE_CALL = {key.encode(): key for key in (names.SEQUENCE_ID, names.OP_ID, names.RECORD_ID, names.PAIR_INDEX)}
"""What differs from one call of a site and shape to the next; monitors send these last, in this order."""
_OP_HEAD = b"\x0a" + bytes((len(names.OP_ID),)) + names.OP_ID.encode() + b"\x12"
_GROUP_KEY = names.GROUP_ID.encode()

MAX_TEMPLATE_BYTES = 16 << 20
"""Attributes, as sent, whose meaning is remembered."""
MAX_NUMBERS = 65_536
MAX_ORIGIN_BYTES = 8 << 20
MAX_GROUP_ID = 256


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
    world = world if world is not None and 0 < world <= MAX_RANK + 1 else None
    return Origin(RunId(job, attempt, run), rank, world, texts.get(names.HOST_NAME, ""), kept)


class Origins:
    """What resources name, by their bytes: a monitor sends the same with every request."""

    def __init__(self) -> None:
        self._known: Cache[bytes, tuple[Origin | None]] = Cache(MAX_ORIGIN_BYTES)

    def read(self, resource: bytes) -> Origin | None:
        """As `read_origin`.

        Raises:
            DecodeError: the bytes are no resource.
        """
        weight = 512 + 3 * len(resource)
        known = self._known.get(resource, weight)
        if known is None:
            known = self._known.put(resource, (read_origin(Resource.FromString(resource)),), weight)
        return known[0]


@dataclass(frozen=True, slots=True)
class Template:
    """What all spans of one call site, signature, group and state say alike; without its members in ``group``.

    Attributes:
        size: of the group; 0: not said. timeout: seconds.
        sequence_id, record, pair_index: where they came among what calls have in common; as a rule they do not.
    """

    group: Group
    size: int
    signature: Signature
    stream: Stream
    state: State
    site: str = ""
    error: str | None = None
    timeout: float | None = None
    sequence_id: int = -1
    record: int = 0
    pair_index: int = 0


SpanCall = tuple[Template, int, int, int, int, int]
"""One span: template, sequence id, record, pair index, start and end in Unix nanoseconds."""


class SpanReader:
    """Reads spans. The same attributes mean the same, so their bytes are decoded once."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._templates: Cache[tuple[bytes, ...], Template] = Cache(MAX_TEMPLATE_BYTES)
        self._sequences: Cache[bytes, int] = Cache(MAX_NUMBERS)
        self._records: Cache[bytes, int] = Cache(MAX_NUMBERS)
        self._pairs: Cache[bytes, int] = Cache(MAX_NUMBERS)
        self._numbers = {
            names.SEQUENCE_ID: self._sequences,
            names.RECORD_ID: self._records,
            names.PAIR_INDEX: self._pairs,
        }

    def read(self, spans: Sequence[RawSpan], invalid: list[str]) -> list[SpanCall]:
        """The spans that are a collective's; of those that lack what a call cannot do without, why, in ``invalid``."""
        found: list[SpanCall] = []
        append = found.append
        templates, sequences = self._templates.young, self._sequences.young
        records, pairs = self._records.young, self._pairs.young
        for span in spans:
            attributes = span.attributes[:]
            try:
                last = attributes[-1]
                if last in records:
                    if not attributes[-2].startswith(_OP_HEAD):
                        raise KeyError
                    template = templates[tuple(attributes[:-3])]
                    sequence, record, pair = sequences[attributes[-3]], records[last], template.pair_index
                else:
                    pair = pairs[last]
                    if not attributes[-3].startswith(_OP_HEAD):
                        raise KeyError
                    template = templates[tuple(attributes[:-4])]
                    sequence, record = sequences[attributes[-4]], records[attributes[-2]]
            except (KeyError, IndexError):
                try:
                    read = self._read(attributes)
                except ValueError as error:
                    invalid.append(str(error))
                    continue
                if read is None:
                    continue
                template, sequence, record, pair = read
            append((template, sequence, record, pair, span.start_time_unix_nano, span.end_time_unix_nano))
        return found

    def _read(self, attributes: Sequence[bytes]) -> tuple[Template, int, int, int] | None:
        """A span some of whose bytes are new.

        Raises:
            ValueError: it lacks what a call cannot do without, or is garbled.
        """
        if len(attributes) > 3 and attributes[-2].startswith(_OP_HEAD):
            # As monitors send it, only the numbers are new.
            template = self._templates.get(tuple(attributes[:-3]))
            if template is not None:
                sequence = self._number(names.SEQUENCE_ID, attributes[-3])
                record = self._number(names.RECORD_ID, attributes[-1])
                if sequence is not None and sequence >= 0 and record is not None:
                    return template, sequence, record, template.pair_index
        shared: list[bytes] = []
        own: dict[str, int] = {}
        for item in attributes:
            # A key of less than 128 bytes that comes first, as every encoder writes it; anything else is read below.
            key = _OF_ONE_CALL.get(item[2 : 2 + item[1]]) if len(item) > 2 else None
            number = self._number(key, item) if key is not None else None
            if key is None or number is None:
                shared.append(item)
            else:
                own[key] = number
        if not own and not any(_GROUP_KEY in item for item in shared):
            return None
        template_key = tuple(shared)
        weight = 512 + 2 * sum(map(len, shared))
        template = self._templates.get(template_key, weight)
        if template is None:
            template = _read_template(shared, self._interner)
            if template is None:
                return None
            self._templates.put(template_key, template, weight)
        sequence = own.get(names.SEQUENCE_ID, template.sequence_id)
        if sequence < 0:
            raise ValueError(f"a span of {template.signature.operation[:80]!r} has no sequence id")
        record, pair = own.get(names.RECORD_ID, template.record), own.get(names.PAIR_INDEX, template.pair_index)
        return template, sequence, record, pair

    def _number(self, key: str, item: bytes) -> int | None:
        """The value of an attribute of one call; None: it is no integer."""
        cache = self._numbers.get(key)
        known = cache.get(item) if cache is not None else None
        if known is not None:
            return known
        try:
            attribute = KeyValue.FromString(item)
        except DecodeError as error:
            raise ValueError("a span's attribute is garbled") from error
        value = attribute.value
        number = value.int_value
        if attribute.key != key or (number == 0 and value.WhichOneof("value") != "int_value"):
            return None
        if cache is not None and number >= 0 and len(item) < 128:
            cache.put(item, number)
        return number


def _read_template(attributes: Iterable[bytes], interner: Interner) -> Template | None:
    """What the attributes say; None: they are no collective's.

    Raises:
        ValueError: they lack what a call cannot do without, or are garbled.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for raw in attributes:
        try:
            item = KeyValue.FromString(raw)
        except DecodeError as garbled:
            raise ValueError("a span's attribute is garbled") from garbled
        key = item.key
        if key in _TEXTS:
            texts[key] = item.value.string_value
        elif key in _NUMBERS:
            numbers[key] = item.value.int_value
        elif key in _LISTS:
            lists[key] = _names(item.value)
    if names.GROUP_ID not in texts:
        return None
    text, number = texts.get, numbers.get
    operation, group_id = text(names.OPERATION, "")[:MAX_NAME], texts[names.GROUP_ID]
    if not operation or not group_id or len(group_id) > MAX_GROUP_ID:
        raise ValueError(f"a span of {operation[:80]!r} has no operation or no usable process group id")
    peer = number(names.PEER)
    signature = interner.signature(
        Signature(
            operation,
            read_sizes(parse_json(text(names.INPUT_SIZES, ""))),
            read_sizes(parse_json(text(names.OUTPUT_SIZES, ""))),
            lists.get(names.INPUT_DTYPES, ()),
            lists.get(names.OUTPUT_DTYPES, ()),
            texts[names.REDUCE_OP][:MAX_NAME] if names.REDUCE_OP in texts else None,
            number(names.ROOT),
            peer,
            number(names.TAG),
            read_splits(parse_json(text(names.INPUT_SPLITS, ""))),
            read_splits(parse_json(text(names.OUTPUT_SPLITS, ""))),
            any_source=operation == "recv" and peer is None,
        )
    )
    error = texts[names.ERROR_TYPE][:MAX_NAME] if names.ERROR_TYPE in texts else None
    file, timeout = text(names.CODE_FILE), number(names.TIMEOUT)
    site = f"{file}:{number(names.CODE_LINE, 0)} {text(names.CODE_FUNCTION, '')}" if file else ""
    name, description = text(names.GROUP_NAME, "")[:MAX_NAME], text(names.GROUP_DESCRIPTION, "")[:MAX_NAME]
    return Template(
        Group(group_id, name, description, ()),
        max(0, number(names.GROUP_SIZE, 0)),
        signature,
        stream_of(text(names.KIND, ""), operation),
        state_of(text(names.STATE, "completed"), error),
        interner.text(site) if site else "",
        error,
        None if timeout is None else timeout / 1_000,
        number(names.SEQUENCE_ID, -1),
        number(names.RECORD_ID, 0),
        number(names.PAIR_INDEX, 0),
    )


def find_text(attributes: Iterable[KeyValue], key: str) -> str:
    """A text attribute's value, or ""."""
    return next((item.value.string_value for item in attributes if item.key == key), "")


def _names(value: AnyValue) -> tuple[str, ...]:
    if value.HasField("array_value"):
        return tuple(item.string_value[:MAX_NAME] for item in value.array_value.values[:MAX_TENSORS])
    return read_names(parse_json(value.string_value))
