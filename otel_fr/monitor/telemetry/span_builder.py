"""Builds OTLP spans of records, from a template per (signature, group, site). This costs a tenth of an SDK span."""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.dumps.contents import stream_of
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.operations import way
from otel_fr.otlp_attributes import attribute, attributes
from otel_fr.presentation import group_name
from otel_fr.ring import KIND_GROUP, KIND_P2P, STATE_TEXT, GroupDef, Record, RecordState, SignatureDef, SiteDef
from otel_fr.torch_recorder import ends_are_seen

SCOPE = InstrumentationScope(name=names.SCOPE_NAME)

MAX_TEMPLATES = 4096
"""Most templates. Bounds the monitor's memory in a job with ever new shapes: a template takes about 2 KB."""
_MAX_ITEMS = 256
"""How many sizes (dtypes, splits) of one call a span contains. The flight-recorder file has all of them."""

_FIXED = struct.Struct("<2s16s2s8ssQsQ")
"""trace_id, span_id, start and end of a span, each after its protobuf tag (and length). The span has no parent: the
ranks' spans of a collective share a trace, and their parent would be a span that is sent only with an incident."""
_TAG_TRACE, _TAG_SPAN, _TAG_START, _TAG_END = b"\x0a\x10", b"\x12\x08", b"\x39", b"\x41"
_TAG_SPANS = b"\x12"
"""``ScopeSpans.spans``, length-delimited."""


_KINDS = {KIND_P2P: names.KIND_P2P, KIND_GROUP: names.KIND_GROUP}


def error_type(record: Record) -> str | None:
    """Return ``error.type`` of a call that failed, else None."""
    if record.state is not RecordState.FAILED:
        return None
    return names.ERROR_TIMEOUT if record.timed_out else names.ERROR_FAILED


def trace_id(run: str, rank: int, record: Record) -> bytes:
    """Return the trace id that all ranks' spans of this call share (16 bytes)."""
    group = record.group.id
    if record.kind == KIND_P2P:
        signature = record.signature
        peer = signature.peer
        if peer is None or signature.any_source:
            # The matching send is unknown, so the call gets a separate trace.
            return identity.trace_id(run, group, f"p2p:{rank}", record.p2p_seq)
        source, destination = way(signature.operation, rank, peer)
        return identity.p2p_trace_id(run, group, source, destination, signature.tag or 0, record.pair_index)
    return identity.trace_id(run, group, stream_of(record), record.coll_seq)


def varint(value: int) -> bytes:
    """Encode an unsigned integer as in protobuf."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _IntegerAttribute:
    """Encodes ``Span.attributes`` entries of one key whose values are non-negative integers."""

    def __init__(self, key: str) -> None:
        # The bytes before the number depend only on how many bytes the number takes.
        self._heads: list[bytes] = [b""]
        for size in range(1, 11):
            of_key = b"\x0a" + varint(len(key)) + key.encode()
            entry = of_key + b"\x12" + varint(1 + size) + b"\x18"
            self._heads.append(b"\x4a" + varint(len(entry) + size) + entry)

    def encode(self, value: int) -> bytes:
        number = varint(value)
        return self._heads[len(number)] + number


_encode_rank = _IntegerAttribute(names.RANK).encode
_encode_sequence = _IntegerAttribute(names.SEQUENCE_ID).encode
_encode_op = _IntegerAttribute(names.OP_ID).encode
_encode_record = _IntegerAttribute(names.RECORD_ID).encode


_encode_step = _IntegerAttribute(names.STEP).encode
_LINK = b"\x6a\x1c\x0a\x10%b\x12\x08%b"
"""``Span.links`` with one link: trace id, span id. Links come last, so that readers can cut them off by length."""


def _double_head(key: str) -> bytes:
    """Return the bytes that precede the eight bytes of a ``Span.attributes`` entry with a double."""
    of_key = b"\x0a" + varint(len(key)) + key.encode()
    entry = of_key + b"\x12\x09\x21"
    return b"\x4a" + varint(len(entry) + 8) + entry


_CAPTURED = Span(attributes=[attribute(names.CAPTURED, True)]).SerializeToString()
_DELAY_HEAD, _DURATION_HEAD = _double_head(names.DEVICE_DELAY), _double_head(names.DEVICE_DURATION)


def _device_fields(device: DeviceTimes, issued_ns: int) -> bytes:
    """Encode delay and duration, or nothing. Their length is fixed, and only links follow, so that readers can cut them
    off."""
    if device.duration_s is None or device.began_ns is None:
        return b""
    delay = struct.pack("<d", (device.began_ns - issued_ns) / 1e6)
    return _DELAY_HEAD + delay + _DURATION_HEAD + struct.pack("<d", device.duration_s * 1e3)


class Context(NamedTuple):
    """The step or section in which a call was made. ``step`` is -1 without a step. ``user``: see `Activity.user`."""

    trace: bytes
    span: bytes
    step: int
    user: bytes | None = None


class SpanBuilder:
    """Builds the spans of one rank as bytes. A serialised message is the concatenation of its fields, in any order.

    Args:
        run: `identity.run_id`.
        wall_offset_ns: wall clock minus the rank's monotonic clock.
        suffix: suffix of the spans' names.
    """

    def __init__(self, run: str, rank: int, wall_offset_ns: int, suffix: str = "") -> None:
        self._run = run
        self._rank = rank
        self._wall_offset_ns = wall_offset_ns
        self._suffix = suffix
        self._rank_attribute = _encode_rank(rank)
        # By object identity, because hashing a signature costs more than building a span. The reader returns one object
        # per definition. An entry holds its three objects, so that their ids are not reused.
        self._templates: dict[tuple[int, ...], tuple[bytes, SignatureDef, GroupDef, SiteDef]] = {}

    def encode(
        self,
        record: Record,
        rank_ended_ns: int | None = None,
        clean: bool = False,
        context: Context | None = None,
        device: DeviceTimes | None = None,
    ) -> bytes:
        """Encode one entry of ``ScopeSpans.spans``: a call that has ended, or was in flight when its rank ended.

        Args:
            rank_ended_ns: when the rank ended, monotonic.
            clean: True if the rank ended cleanly. A call in flight is then no error: the rank never waited for it.
            context: the section or step in which the call was made.
            device: when the call ran on the device, if known.
        """
        trace = trace_id(self._run, self._rank, record)
        wall, issued_ns = self._wall_offset_ns, record.issued_ns
        end_ns = max(record.ended_ns or rank_ended_ns or issued_ns, issued_ns)
        span = (
            # The rank comes before the template, because the collector looks up the template, which is the same on
            # other ranks.
            self._rank_attribute
            + self._template(record)
            + _FIXED.pack(
                _TAG_TRACE,
                trace,
                _TAG_SPAN,
                identity.span_id(trace, self._rank, record.record_id),
                _TAG_START,
                issued_ns + wall,
                _TAG_END,
                end_ns + wall,
            )
            + _encode_sequence(record.sequence_id)
            + _encode_op(record.op_id)
            + _encode_record(record.record_id)
        )
        if record.kind == KIND_P2P or record.state is RecordState.FAILED or record.state is RecordState.IN_FLIGHT:
            span += _rare_fields(record, clean)
        if context is not None and context.step >= 0:
            span += _encode_step(context.step)
        if device is not None and device.is_captured:
            span += _CAPTURED
        elif device is not None:
            span += _device_fields(device, issued_ns)
        if context is not None:
            span += _LINK % context[:2]
            if context.user is not None:
                span += _LINK % (context.user[:16], context.user[16:])
        return _TAG_SPANS + varint(len(span)) + span

    def _template(self, record: Record) -> bytes:
        key = (
            id(record.signature),
            id(record.group),
            id(record.site),
            record.kind,
            record.timeout_ms,
            record.state,
        )
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            found = (
                _build_template(record, self._suffix),
                record.signature,
                record.group,
                record.site,
            )
            self._templates[key] = found
        return found[0]


def _rare_fields(record: Record, clean: bool) -> bytes:
    """Encode the fields of a span that most calls do not have."""
    span = Span()
    if record.kind == KIND_P2P:
        span.attributes.append(attribute(names.PAIR_INDEX, record.pair_index))
    error = error_type(record)
    if record.state is RecordState.IN_FLIGHT and not clean:
        error = names.ERROR_RANK_EXITED
    if error is not None:
        span.attributes.append(attribute(names.ERROR_TYPE, error))
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = _message(record, error)
    return span.SerializeToString()


def _message(record: Record, error: str) -> str:
    name = record.signature.operation
    if error == names.ERROR_RANK_EXITED:
        return f"{name} was in flight when its rank ended"
    if error == names.ERROR_TIMEOUT:
        return f"{name} did not end within its timeout of {record.timeout_ms / 1000:g} s"
    return f"{name} failed"


def _build_template(record: Record, suffix: str) -> bytes:
    """Encode what all calls of one signature, group, site and state have in common."""
    signature, group = record.signature, record.group
    name = f"{signature.operation} {group_name(group.name, group.description)}{suffix}"
    span = Span(name=name, kind=Span.SPAN_KIND_INTERNAL)
    values: dict[str, object] = {
        names.STATE: STATE_TEXT[record.state],
        names.OPERATION: signature.operation,
        names.KIND: _KINDS.get(record.kind, names.KIND_COLLECTIVE),
        names.BACKEND: signature.backend,
        names.END_SEEN: True if ends_are_seen(signature.backend) else None,
        names.INPUT_SIZES: json.dumps(signature.input_sizes[:_MAX_ITEMS]),
        names.OUTPUT_SIZES: json.dumps(signature.output_sizes[:_MAX_ITEMS]),
        names.INPUT_DTYPES: signature.input_dtypes[:_MAX_ITEMS],
        names.OUTPUT_DTYPES: signature.output_dtypes[:_MAX_ITEMS],
        names.INPUT_BYTES: signature.input_bytes,
        names.OUTPUT_BYTES: signature.output_bytes,
        names.INPUT_SPLITS: _splits(signature.input_splits),
        names.OUTPUT_SPLITS: _splits(signature.output_splits),
        names.REDUCE_OP: signature.reduce_op,
        names.ROOT: signature.root,
        names.PEER: signature.peer,
        names.ANY_SOURCE: signature.any_source or None,
        names.TAG: signature.tag,
        names.TIMEOUT: record.timeout_ms or None,
        names.GROUP_ID: group.id,
        names.GROUP_NAME: group.name,
        names.GROUP_DESCRIPTION: group.description,
        names.GROUP_SIZE: len(group.ranks) or None,
    }
    new = signature.new_group
    if new is not None:
        values[names.NEW_GROUP_NAME], values[names.NEW_GROUP_DESCRIPTION] = new.name, new.description
        values[names.NEW_GROUP_RANKS] = identity.encode_ranks(new.ranks)
        values[names.NEW_GROUP_AWAITS_ALL] = int(new.awaits_all)
    if record.site.frames:
        file, line, function = record.site.frames[0]
        values.update({names.CODE_FUNCTION: function, names.CODE_FILE: file, names.CODE_LINE: line})
    span.attributes.extend(attributes(values))
    return span.SerializeToString()


def _splits(splits: tuple[int, ...] | None) -> str | None:
    return None if splits is None else json.dumps(splits[:_MAX_ITEMS])
