"""``--otlp``: the incidents as traces in Jaeger, Tempo or any other OTLP backend, as the live collector sends them.

The root span is the incident; its children are the ranks' calls that their files hold. Trace and span ids are computed
(`otel_fr.identity`), so that for files of otel-fr they are those of the spans the ranks may have sent already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from urllib.parse import urlparse

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.assemble.runs import Run
from otel_fr.analyze.collectives import Collective, moment
from otel_fr.dumps.entry import Entry
from otel_fr.dumps.model import Dump
from otel_fr.incident import IncidentData
from otel_fr.incident_trace import resource_spans, root_span
from otel_fr.match import CallState, Group
from otel_fr.otlp_attributes import attributes, utf8
from otel_fr.otlp_sender import sender_from_env

SERVICE = "otel-fr analyze"
"""``service.name`` of the traces."""

BATCH = 500
"""Spans of one request: a span is about 1 KB, and servers take 4 MB at a time."""

_HTTP_PORT = 4318
_TRACES = "/v1/traces"
_MAX_ITEMS = 256


class UnreachableEndpoint(Exception):  # noqa: N818 - it names the problem
    """The traces could not be sent; the text says why."""


def send_traces(analysis: Analysis, endpoint: str) -> int:
    """Send the trace of every incident that shows in a collective. Returns the number of traces sent.

    ``endpoint``: an http or https URL.

    Headers, TLS, compression and timeout are those of the ``OTEL_EXPORTER_OTLP_*`` variables; so is the protocol,
    which otherwise follows from the port (4318: http/protobuf, else gRPC).

    Raises:
        UnreachableEndpoint: the settings cannot be used, or no server took the traces.
    """
    url = urlparse(endpoint)
    if url.port == _HTTP_PORT:
        os.environ.setdefault("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    whole = protocol == "http/protobuf" and url.path in ("", "/")
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = endpoint.rstrip("/") + _TRACES if whole else endpoint
    if not any(data["trace_id"] for data in analysis.incidents):
        return 0
    try:
        sender = sender_from_env("traces")
    except Exception as error:
        raise UnreachableEndpoint(f"the OTEL_EXPORTER_OTLP_* settings cannot be used: {error}") from error
    sent = 0
    for batch in span_batches(analysis):
        count = sum(len(scope.spans) for of in batch for scope in of.scope_spans)
        if not sender.send(ExportTraceServiceRequest(resource_spans=batch), count):
            raise UnreachableEndpoint("no server took the traces there; is it running, and is the port one for OTLP?")
        sent += sum(not span.parent_span_id for of in batch for scope in of.scope_spans for span in scope.spans)
    return sent


def _root(analysis: Analysis, data: IncidentData) -> Span | None:
    detected = analysis.made_at if analysis.run is None or analysis.run.written_at is None else analysis.run.written_at
    finding = next(f for f, d in zip(analysis.findings, analysis.incidents, strict=True) if d is data)
    started = None if finding.age is None else detected - finding.age
    return root_span(data, started, detected)


def span_batches(analysis: Analysis) -> Iterator[list[ResourceSpans]]:
    """The spans of all incidents that show in a collective, at most about `BATCH` at a time."""
    run = analysis.run
    if run is None:
        return
    roots = [root for data in analysis.incidents if (root := _root(analysis, data)) is not None]
    about: dict[str, object] = {
        names.SERVICE_NAME: SERVICE,
        names.JOB_ID: run.job or None,
        names.RUN_ID: run.run_id or None,
    }
    dumps = {dump.rank: dump for dump in run.dumps}
    keys = {data["trace_id"]: finding.key for data, finding in zip(analysis.incidents, analysis.findings, strict=True)}
    collectives = {collective.name: collective for collective in analysis.collectives}
    batch: list[ResourceSpans] = []
    for root in roots:
        collective = collectives.get(keys[root.trace_id.hex()])
        calls = [] if collective is None else _spans(run, dumps, collective, root)
        if calls:
            root.start_time_unix_nano = min(
                root.start_time_unix_nano, *(span.start_time_unix_nano for _, span in calls)
            )
            root.end_time_unix_nano = max(root.end_time_unix_nano, *(span.end_time_unix_nano for _, span in calls))
        batch.append(resource_spans(about, [root]))
        for dump, span in calls:
            batch.append(resource_spans({**about, **_resource(run, dump)}, [span]))
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _resource(run: Run, dump: Dump) -> dict[str, object]:
    return {
        names.RANK: dump.rank,
        names.WORLD_SIZE: run.evidence.world_size,
        names.HOST_NAME: dump.text("host") or None,
        names.JOB_ATTEMPT: run.attempt,
    }


def _spans(run: Run, dumps: dict[int, Dump], collective: Collective, root: Span) -> list[tuple[Dump, Span]]:
    return [
        (dumps[rank], _span(entry, rank, collective, root))
        for rank, calls in sorted(collective.calls.items())
        for entry in calls
    ]


def _span(entry: Entry, rank: int, collective: Collective, root: Span) -> Span:
    """The span of one rank's call. Unknown times are the incident's; a call in flight ends with the incident."""
    start = moment(entry.created_ns) or root.start_time_unix_nano
    took = 0 if entry.duration is None else int(max(0.0, min(entry.duration, 1e9)) * 1e9)
    end = moment(entry.ended_ns) or (
        start + took if entry.state is not CallState.IN_FLIGHT else root.end_time_unix_nano
    )
    trace = root.trace_id
    span = Span(
        trace_id=trace,
        span_id=identity.span_id(trace, rank, entry.record),
        parent_span_id=root.span_id,
        name=utf8(f"{entry.signature.operation} {collective.group.description or collective.group.name}"),
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=max(start, end),
    )
    span.attributes.extend(attributes({names.RANK: rank, **_attributes(entry, collective.group)}))
    if entry.state in (CallState.IN_FLIGHT, CallState.FAILED):
        in_flight = entry.state is CallState.IN_FLIGHT
        how = "was in flight when the file was written" if in_flight else "failed"
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=utf8(f"{entry.signature.operation} {how}")))
    return span


def _attributes(entry: Entry, group: Group) -> dict[str, object]:
    signature = entry.signature
    file, _, rest = entry.site.rpartition(":")
    line, _, function = rest.partition(" ")
    return {
        names.STATE: entry.state.value,
        names.OPERATION: signature.operation,
        names.KIND: entry.stream if entry.stream in (names.KIND_P2P, names.KIND_GROUP) else names.KIND_COLLECTIVE,
        names.SEQUENCE_ID: entry.sequence_id,
        names.RECORD_ID: entry.record,
        names.BACKEND: entry.backend or None,
        names.INPUT_SIZES: json.dumps(signature.input_sizes[:_MAX_ITEMS]),
        names.OUTPUT_SIZES: json.dumps(signature.output_sizes[:_MAX_ITEMS]),
        names.INPUT_DTYPES: list(signature.input_dtypes[:_MAX_ITEMS]),
        names.OUTPUT_DTYPES: list(signature.output_dtypes[:_MAX_ITEMS]),
        names.REDUCE_OP: signature.reduce_op,
        names.ROOT: signature.root,
        names.PEER: signature.peer,
        names.TAG: signature.tag,
        names.PAIR_INDEX: entry.pair_index,
        names.TIMEOUT: None if entry.timeout is None else int(entry.timeout * 1e3),
        names.ERROR_TYPE: entry.error or (names.ERROR_FAILED if entry.state is CallState.FAILED else None),
        names.GROUP_ID: group.id,
        names.GROUP_NAME: group.name,
        names.GROUP_DESCRIPTION: group.description,
        names.GROUP_SIZE: len(group.ranks) or None,
        names.CODE_FILE: file or None,
        names.CODE_LINE: int(line) if file and line.isdigit() and len(line) < 10 else None,
        names.CODE_FUNCTION: function if file and function else None,
    }
