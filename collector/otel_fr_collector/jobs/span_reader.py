"""Reads OTLP spans into the form that runs keep. What many spans have in common is decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError
from msgspec import MsgspecError
from msgspec.json import Decoder
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr import semconv as names
from otel_fr.match import Group, NewGroup, Signature
from otel_fr.rank_report import MAX_GROUP_ID
from otel_fr.rank_report.bounds import MAX_DTYPE, MAX_NAME, MAX_TENSORS, Names, Sizes, Splits
from otel_fr.torch_recorder import ends_are_seen
from otel_fr_collector.jobs.bounded import Cache
from otel_fr_collector.jobs.calls import (
    MAX_GROUP_NAME,
    MAX_LIGHT,
    MAX_TEXT,
    UNIT,
    Interner,
    SpanCall,
    Template,
    state_of,
    stream_of,
    weight_of,
    weight_of_texts,
)
from otel_fr_collector.jobs.rank_reports import MemberReader
from otel_fr_collector.jobs.span_cuts import (
    END,
    MAX_LAYOUTS,
    MAX_RANKS,
    SPAN_ID,
    TRACE_ID,
    Cut,
    Layout,
    cut,
    decode,
    device_time,
    seconds_of,
    without_rest,
)

_T = TypeVar("_T")
_TEXTS = frozenset(
    {names.OPERATION, names.KIND, names.STATE, names.BACKEND, names.INPUT_SIZES, names.OUTPUT_SIZES, names.REDUCE_OP}
    | {names.INPUT_SPLITS, names.OUTPUT_SPLITS, names.GROUP_ID, names.GROUP_NAME, names.GROUP_DESCRIPTION}
    | {names.CODE_FUNCTION, names.CODE_FILE, names.ERROR_TYPE}
    | {names.NEW_GROUP_NAME, names.NEW_GROUP_DESCRIPTION, names.NEW_GROUP_RANKS}
)
_NUMBERS = frozenset(
    {names.ROOT, names.PEER, names.TAG, names.TIMEOUT, names.GROUP_SIZE, names.CODE_LINE, names.NEW_GROUP_AWAITS_ALL}
)
_LISTS = frozenset({names.INPUT_DTYPES, names.OUTPUT_DTYPES})
_SWITCHES = frozenset({names.END_SEEN, names.ANY_SOURCE})
_OF_ONE_CALL = frozenset({names.RANK, names.SEQUENCE_ID, names.OP_ID, names.RECORD_ID, names.PAIR_INDEX, names.STEP})
"""Attributes that differ between calls of one site and shape. Monitors send the rank first, and the others last."""
_OF_DEVICE = frozenset({names.DEVICE_DELAY, names.DEVICE_DURATION})
"""Attributes that show when a call ran on its device."""
_GROUP_KEY = names.GROUP_ID.encode()
_SIZES: Decoder[Sizes] = Decoder(Sizes)
_SPLITS: Decoder[Splits] = Decoder(Splits)
_NAMES: Decoder[Names] = Decoder(Names)

MAX_TAIL = 256
"""Bytes of the last piece of a span that is looked up separately; monitors send less than half as many."""
MAX_FOLLOWER, MAX_FOLLOWERS = 2_048, 1_024
"""Bytes of a head that is kept with the head that follows it, and the number of these: some megabytes at most."""
MAX_SPAN = 256 << 10
"""Bytes of a span that is decoded."""
MAX_ATTRIBUTES = 256
"""Attributes of a span that is decoded; SDKs send at most 128 of them by default."""


class SpanReader:
    """Reads spans. What the calls of one site and shape have in common is decoded once.

    Each piece of a span is looked up separately (`otel_fr_collector.jobs.span_cuts`). A new piece is decoded, to check
    that it consists of complete fields. A span of any other form is decoded in one piece.
    """

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        budget = interner.budget
        self._new_weight = 0
        self._layouts: dict[int, Layout] = {}
        """By length, how the last span of that length was cut. The next is mostly alike; its pieces show if not."""
        self._followers: dict[bytes, tuple[bytes, Template]] = {}
        """By head, the head that followed it the last time, with its template. Training repeats its calls, so mostly
        the same head follows again. Comparing two heads takes a tenth of a look-up, which hashes some 800 bytes."""
        self._ranks: set[bytes] = set()
        """Encoded rank attributes that are known to be complete fields."""
        self._heads: Cache[bytes, Template] = Cache(budget, lambda key, one: len(key) + one.bytes)
        self._tails: Cache[bytes, tuple[int, int, int]] = Cache(budget, lambda key, _: UNIT + len(key))
        self._templates: Cache[tuple[bytes, ...], Template] = Cache(
            budget, lambda key, one: sum(map(len, key)) + 40 * len(key) + one.bytes
        )

    def take_new_weight(self) -> int:
        """Return the weight of signatures and texts read since the last call of this method, in units of one call."""
        weight, self._new_weight = self._new_weight, 0
        return weight

    def read(self, spans: Sequence[bytes], invalid: list[str]) -> list[SpanCall]:  # noqa: C901, PLR0912, PLR0915
        """Read the spans that describe calls. For each span that cannot be read, the reason is added to ``invalid``."""
        if max(map(len, spans), default=0) > MAX_SPAN:
            small = [span for span in spans if len(span) <= MAX_SPAN]
            invalid += [f"a span is larger than {MAX_SPAN} bytes"] * (len(spans) - len(small))
            spans = small
        found: list[SpanCall] = []
        append = found.append
        known_head, known_tail, known_layout = self._heads.young.get, self._tails.young.get, self._layouts.get
        ranks, known_rank = self._ranks, None
        followers, last = self._followers, b""
        for span in spans:
            layout = known_layout(len(span))
            if layout is not None:
                unpack, opening, middle, rest = layout
                trace_tag, span_tag, begins, between, start, end_tag, end, of_rank, head, tail = unpack(span)
                if (
                    begins == opening
                    and between == middle
                    and trace_tag == TRACE_ID
                    and span_tag == SPAN_ID
                    and end_tag == END
                    and (of_rank == known_rank or of_rank in ranks)
                    and (not rest or without_rest(span, len(span) - rest) == len(span) - rest)
                ):
                    known_rank = of_rank  # mostly all spans of a request are of one rank
                    follower = followers.get(last)
                    template: Template | None
                    if follower is not None and follower[0] == head:
                        last, template = follower
                    else:
                        template = known_head(head)
                        if template is not None and len(head) <= MAX_FOLLOWER and not template.is_heavy:
                            if len(followers) >= MAX_FOLLOWERS:
                                followers.clear()
                            followers[last] = head, template
                            last = head
                    numbers = known_tail(tail) or self._tail(tail)
                    if template is not None and numbers is not None:
                        sequence, record, pair = numbers
                        device = device_time(span, len(span) - rest) if rest else None
                        append((template, sequence, record, pair, start, end, device))
                        continue
            pieces = cut(span)
            if pieces is not None:
                numbers, template = self._tail(pieces.tail), self._head(pieces.head)
                if numbers is not None and template is not None:
                    device = device_time(span, len(span) - pieces.rest)
                    append((template, *numbers, pieces.start, pieces.end, device))
                    self._note_layout(len(span), pieces)
                    continue
            try:
                read = self._read_whole(span)
            except DecodeError:
                invalid.append("a span cannot be decoded")
            except ValueError as error:
                invalid.append(str(error))
            else:
                if read is not None:
                    append(read)
        return found

    def _note_layout(self, length: int, pieces: Cut) -> None:
        if len(self._layouts) >= MAX_LAYOUTS:
            self._layouts.clear()
        if len(self._ranks) >= MAX_RANKS:
            self._ranks.clear()
        self._layouts[length] = pieces.layout()
        self._ranks.add(pieces.own)

    def _tail(self, piece: bytes) -> tuple[int, int, int] | None:
        """Look up or decode the last piece of a span, see `_decode_tail`."""
        if len(piece) > MAX_TAIL:
            return None
        numbers = self._tails.get(piece)
        if numbers is None:
            numbers = _decode_tail(piece)
            if numbers is not None:
                self._tails.put(piece, numbers)
        return numbers

    def _head(self, piece: bytes) -> Template | None:
        """The template of the attributes that equal calls have in common; None: the piece is something else."""
        template = self._heads.get(piece)
        if template is None:
            common = decode(piece)
            if common is None or len(common.attributes) > MAX_ATTRIBUTES:
                return None
            if any(item.key in _OF_ONE_CALL for item in common.attributes):
                return None
            try:
                template = _read_template(common.attributes, self._interner)
            except ValueError:
                return None
            if template is not None:
                self._new_weight += template.weight + template.text_weight
                self._heads.put(piece, template)
        return template

    def _read_whole(self, span: bytes) -> SpanCall | None:
        """Read a span of any form; None: it does not describe a call.

        Raises:
            DecodeError, ValueError: it cannot be decoded, or lacks what every call has.
        """
        if _GROUP_KEY not in span:
            return None
        decoded = Span.FromString(span)
        if len(decoded.attributes) > MAX_ATTRIBUTES:
            raise ValueError(f"a span has more than {MAX_ATTRIBUTES} attributes")
        own: dict[str, int] = {}
        shared: list[KeyValue] = []
        device: float | None = None
        for item in decoded.attributes:
            if item.key in _OF_ONE_CALL and item.value.WhichOneof("value") == "int_value":
                own[item.key] = item.value.int_value
            elif item.key not in _OF_DEVICE:
                shared.append(item)
            elif item.key == names.DEVICE_DURATION:
                device = seconds_of(item.value.double_value)
        key = tuple(item.SerializeToString() for item in shared)
        template = self._templates.get(key)
        if template is None:
            template = _read_template(shared, self._interner)
            if template is None:
                return None
            self._new_weight += template.weight + template.text_weight
            self._templates.put(key, template)
        sequence = own.get(names.SEQUENCE_ID, -1)
        if sequence < 0:
            raise ValueError(f"span {decoded.name[:80]!r} has no sequence id")
        record, pair = own.get(names.RECORD_ID, 0), own.get(names.PAIR_INDEX, 0)
        return template, sequence, record, pair, decoded.start_time_unix_nano, decoded.end_time_unix_nano, device


def _decode_tail(piece: bytes) -> tuple[int, int, int] | None:
    """Sequence id, record and pair index; None: the piece has incomplete fields, or also contains others."""
    span = decode(piece)
    if span is None or len(span.attributes) > len(_OF_ONE_CALL):
        return None
    sequence, record, pair = -1, 0, 0
    for item in span.attributes:
        key, value = item.key, item.value
        number = value.int_value
        if not number and not value.HasField("int_value"):
            return None
        if key == names.SEQUENCE_ID:
            sequence = number
        elif key == names.RECORD_ID:
            record = number
        elif key == names.PAIR_INDEX:
            pair = number
        elif key not in (names.OP_ID, names.STEP):
            return None
    return None if sequence < 0 else (sequence, record, pair)


def _read_template(attributes: Iterable[KeyValue], interner: Interner) -> Template | None:
    """Make a template from attributes; None: they do not describe a call.

    Raises:
        ValueError: the operation, or a usable group id, is missing; or a new group's ranks are no list of ranks.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    lists: dict[str, tuple[str, ...]] = {}
    switches: set[str] = set()
    for item in attributes:
        key = item.key
        if key in _TEXTS:
            texts[key] = item.value.string_value
        elif key in _NUMBERS:
            numbers[key] = item.value.int_value
        elif key in _LISTS:
            lists[key] = _names(item.value)
        elif key in _SWITCHES and item.value.bool_value:
            switches.add(key)
    if names.GROUP_ID not in texts:
        return None
    text, number = texts.get, numbers.get
    operation, group_id = text(names.OPERATION, "")[:MAX_NAME], texts[names.GROUP_ID]
    if not operation or not group_id or len(group_id) > MAX_GROUP_ID:
        raise ValueError(f"a span of {operation[:80]!r} has no operation or no usable process group id")
    peer = number(names.PEER)
    signature = interner.signature(
        Signature(
            operation=operation,
            input_sizes=_listed(_SIZES, text(names.INPUT_SIZES)) or (),
            output_sizes=_listed(_SIZES, text(names.OUTPUT_SIZES)) or (),
            input_dtypes=lists.get(names.INPUT_DTYPES, ()),
            output_dtypes=lists.get(names.OUTPUT_DTYPES, ()),
            reduce_op=texts[names.REDUCE_OP][:MAX_NAME] if names.REDUCE_OP in texts else None,
            root=number(names.ROOT),
            peer=peer,
            tag=number(names.TAG),
            input_splits=_listed(_SPLITS, text(names.INPUT_SPLITS)),
            output_splits=_listed(_SPLITS, text(names.OUTPUT_SPLITS)),
            any_source=operation == "recv" and (peer is None or names.ANY_SOURCE in switches),
            new_group=_new_group(texts, numbers, interner) if names.NEW_GROUP_NAME in texts else None,
        )
    )
    error = texts[names.ERROR_TYPE][:MAX_NAME] if names.ERROR_TYPE in texts else None
    file, timeout = text(names.CODE_FILE), number(names.TIMEOUT)
    site = interner.text(f"{file}:{number(names.CODE_LINE, 0)} {text(names.CODE_FUNCTION, '')}") if file else ""
    name, description = text(names.GROUP_NAME, ""), text(names.GROUP_DESCRIPTION, "")
    weight, text_weight = weight_of(signature), weight_of_texts(group_id, site, error)
    return Template(
        group=Group(group_id, name[:MAX_GROUP_NAME], description[:MAX_GROUP_NAME], ()),
        size=max(0, number(names.GROUP_SIZE, 0)),
        signature=signature,
        weight=weight,
        stream=stream_of(text(names.KIND, ""), operation),
        state=state_of(text(names.STATE, "completed"), error),
        site=site,
        error=error,
        timeout=None if timeout is None else timeout / 1_000,
        text_weight=text_weight,
        is_heavy=weight + text_weight > MAX_LIGHT,
        is_end_seen=names.END_SEEN in switches or ends_are_seen(text(names.BACKEND, "")),
    )


def _new_group(texts: dict[str, str], numbers: dict[str, int], interner: Interner) -> NewGroup:
    """The process group that a call creates. Raises ValueError: its ranks are no list of ranks."""
    text = texts.get
    return NewGroup(
        texts[names.NEW_GROUP_NAME][:MAX_GROUP_NAME],
        text(names.NEW_GROUP_DESCRIPTION, "")[:MAX_GROUP_NAME],
        MemberReader(interner).read(text(names.NEW_GROUP_RANKS, "")),
        bool(numbers.get(names.NEW_GROUP_AWAITS_ALL)),
    )


def _names(value: AnyValue) -> tuple[str, ...]:
    if value.HasField("array_value"):
        return tuple(item.string_value[:MAX_DTYPE] for item in value.array_value.values[:MAX_TENSORS])
    return _listed(_NAMES, value.string_value) or ()


def _listed(kind: Decoder[_T], text: str | None) -> _T | None:
    """Decode a JSON list; None: it is missing, invalid or too long, or its values are out of bounds."""
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        return kind.decode(text)
    except (MsgspecError, UnicodeError, RecursionError):
        return None
