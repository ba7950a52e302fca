"""The incident trace: one root span above the ranks' spans of the collective in which the fault shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.incident import IncidentData
from otel_fr.otlp_attributes import attributes, utf8

MAX_SECONDS = 2.0**62 / 1e9
"""Unix time (in 2116) above which a time is taken for damage; as nanoseconds it fits OTLP's fixed64."""


def incident_trace(
    data: IncidentData, resource: Mapping[str, object], started: float | None, detected: float
) -> bytes | None:
    """The OTLP request that carries an incident's root span; None: the incident shows in no collective.

    Args:
        resource: attributes of the job's resource; ``service.name`` among them groups it with the ranks' spans.
        started, detected: Unix seconds.
    """
    span = root_span(data, started, detected)
    if span is None:
        return None
    return ExportTraceServiceRequest(resource_spans=[resource_spans(resource, [span])]).SerializeToString()


def root_span(data: IncidentData, started: float | None, detected: float) -> Span | None:
    """The root of an incident's trace, parent of every rank's span; None: the incident shows in no collective."""
    group = data["process_group"]
    if data["trace_id"] is None or group is None:
        return None
    trace = bytes.fromhex(data["trace_id"])
    start = detected if started is None else min(started, detected)
    span = Span(
        trace_id=trace,
        span_id=identity.root_span_id(trace),
        name=utf8(f"{data['operation']} {group['description'] or group['name']}"),
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanoseconds(start),
        end_time_unix_nano=_nanoseconds(detected),
        status=Status(code=Status.STATUS_CODE_ERROR, message=utf8(data["summary"])),
    )
    span.attributes.extend(
        attributes(
            {
                names.INCIDENT_ID: data["id"],
                names.INCIDENT_CATEGORY: data["category"],
                names.INCIDENT_CULPRITS: data["culprit_ranks"] if data["caused_by"] is None else None,
                names.INCIDENT_CAUSED_BY: data["caused_by"],
                names.INCIDENT_WAITING: data["waiting_ranks"],
                names.INCIDENT_STUCK_ON: data["stuck_on"],
                names.ERROR_TYPE: data["category"],
                names.OPERATION: data["operation"],
                names.SEQUENCE_ID: data["sequence_id"],
                names.GROUP_ID: group["id"],
                names.GROUP_NAME: group["name"],
                names.GROUP_DESCRIPTION: group["description"],
                names.GROUP_SIZE: len(group["ranks"]) or None,
            }
        )
    )
    return span


def _nanoseconds(seconds: float) -> int:
    """A Unix time in nanoseconds; 0: no clock has it, as files may contain any number."""
    return int(seconds * 1e9) if 0.0 < seconds < MAX_SECONDS else 0


def resource_spans(resource: Mapping[str, object], spans: Iterable[Span]) -> ResourceSpans:
    """Spans of one resource, in otel-fr's scope."""
    scope = ScopeSpans(scope=InstrumentationScope(name=names.SCOPE_NAME), spans=spans)
    return ResourceSpans(resource=Resource(attributes=attributes(resource)), scope_spans=[scope])
