"""``--otlp``: the incidents as traces in Jaeger, Tempo or any other OTLP backend, as the live collector sends them.

The root span is the incident. Its children are the ranks' calls in the files, and the culprits. Ranks and collector
compute the same trace id, so their spans are in the same trace. Span ids are different for files
(`otel_fr.incident_trace`), so that no span replaces or repeats another.
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
from otel_fr.incident_trace import FILES, MAX_CULPRITS, IncidentSpans, RankFacts, parts_of, resource_spans
from otel_fr.match import CallState, Category, Group
from otel_fr.otlp_attributes import attributes, utf8
from otel_fr.otlp_sender import protocol_of, sender_from_env
from otel_fr.presentation import group_name
from otel_fr.stacks import site_of

SERVICE = "otel-fr analyze"
"""``service.name`` of the traces if the files do not contain the job's."""

BATCH = 500
"""Spans of one request. A span is about 1 KB, and servers accept 4 MB at a time."""

_HTTP_PORT = 4318
_TRACES = "/v1/traces"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MAX_ITEMS = 256
_LATEST = 2**63 - 1


class UnreachableEndpoint(Exception):  # noqa: N818 - it names the problem
    """The traces could not be sent. The text says why."""


def send_traces(analysis: Analysis, endpoint: str) -> int:
    """Send the trace of every incident that shows in a collective. Return the number of traces.

    The variables ``OTEL_EXPORTER_OTLP_*`` set headers, TLS, compression, timeout and protocol. Without a variable, the
    protocol follows from the port (4318: http/protobuf, else gRPC).

    Args:
        endpoint: an http or https URL.

    Raises:
        UnreachableEndpoint: the settings cannot be used, or no server accepted the traces.
    """
    url = urlparse(endpoint)
    if url.port == _HTTP_PORT and not any(os.environ.get(name, "").strip() for name in _PROTOCOLS):
        os.environ[_PROTOCOLS[0]] = "http/protobuf"
    whole = protocol_of("traces") == "http/protobuf" and url.path in ("", "/")
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


def span_batches(analysis: Analysis) -> Iterator[list[ResourceSpans]]:
    """Yield the spans of all incidents that show in a collective, about `BATCH` at a time."""
    run = analysis.run
    if run is None:
        return
    dumps = {dump.rank: dump for dump in run.dumps}
    about: dict[str, object] = {
        # The name in the ranks' own spans, by which backends group traces. Files of other recorders lack it.
        names.SERVICE_NAME: next((text for dump in run.dumps if (text := dump.text("service_name"))), SERVICE),
        names.JOB_ID: run.job or None,
        names.RUN_ID: run.run_id or None,
    }
    seen: set[str] = set()
    batch: list[ResourceSpans] = []
    for finding, data in zip(analysis.findings, analysis.incidents, strict=True):
        trace = data["trace_id"]
        if trace is None or data["process_group"] is None:
            continue
        is_first = trace not in seen
        seen.add(trace)
        detected = analysis.made_at if run.written_at is None else run.written_at
        started = None if finding.age is None else detected - finding.age
        made = IncidentSpans(data, started, source=FILES, is_first=is_first)
        incident = made.incident(detected)
        collective = analysis.collective_by_name.get(finding.key) if is_first else None
        calls = [] if collective is None else _spans(dumps, collective, incident)
        calls += [(dumps.get(one.rank), made.culprit(one, detected)) for one in _culprits(run, data)]
        starts = [start for _, span in calls if (start := span.start_time_unix_nano)]
        incident.start_time_unix_nano = min(incident.start_time_unix_nano, *starts, _LATEST)
        incident.end_time_unix_nano = max(
            incident.end_time_unix_nano, *(span.end_time_unix_nano for _, span in calls), 0
        )
        batch.append(resource_spans(about, [incident]))
        for dump, span in calls:
            resource = about if dump is None else {**about, **_resource(run, dump)}
            batch.append(resource_spans(resource, [span]))
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _culprits(run: Run, data: IncidentData) -> list[RankFacts]:
    if data["caused_by"] is not None:
        return []
    found = []
    for number in data["culprit_ranks"][:MAX_CULPRITS]:
        rank = run.evidence.ranks.get(number)
        stack = data["stacks"].get(str(number), "") or ("" if rank is None else rank.stack)
        site = ""
        if Category(data["category"]).is_mismatch:
            site = data["call_sites"].get(str(number), "")
        elif rank is not None:
            site = rank.exception_site or rank.site
        error = "" if rank is None else rank.exception
        found.append(RankFacts(number, site=site or site_of(stack), stack=stack, error=error))
    return found


def _resource(run: Run, dump: Dump) -> dict[str, object]:
    return {
        names.RANK: dump.rank,
        names.WORLD_SIZE: run.evidence.world_size,
        names.HOST_NAME: dump.text("host") or None,
        names.JOB_ATTEMPT: run.attempt,
    }


def _spans(dumps: dict[int, Dump], collective: Collective, root: Span) -> list[tuple[Dump | None, Span]]:
    return [
        (dumps.get(rank), _span(entry, rank, collective, root))
        for rank, calls in sorted(collective.calls.items())
        for entry in calls
    ]


def _span(entry: Entry, rank: int, collective: Collective, root: Span) -> Span:
    """The span of one rank's call. An unknown start is the incident's. A call in flight ends with the incident."""
    start = moment(entry.created_ns) or root.start_time_unix_nano
    took = 0 if entry.duration is None else int(max(0.0, min(entry.duration, 1e9)) * 1e9)
    end = moment(entry.ended_ns) or (
        start + took if entry.state is not CallState.IN_FLIGHT else root.end_time_unix_nano
    )
    trace, group = root.trace_id, collective.group
    span = Span(
        trace_id=trace,
        # Not `identity.span_id`: the rank may have sent the span of the same call itself.
        span_id=identity.incident_span_id(trace, FILES, "call", rank, entry.record),
        parent_span_id=root.span_id,
        name=utf8(f"{entry.signature.operation} {group_name(group.name, group.description)} [rank {rank}]"),
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=max(start, end),
    )
    span.attributes.extend(attributes({names.RANK: rank, **_attributes(entry, group)}))
    if entry.state in (CallState.IN_FLIGHT, CallState.FAILED):
        in_flight = entry.state is CallState.IN_FLIGHT
        how = "was in flight when the file was written" if in_flight else "failed"
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=utf8(f"{entry.signature.operation} {how}")))
    return span


def _attributes(entry: Entry, group: Group) -> dict[str, object]:
    signature = entry.signature
    file, line, function = parts_of(entry.site)
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
        names.CODE_LINE: line,
        names.CODE_FUNCTION: function or None,
    }
