"""OTLP's three signals, and the gRPC method of each."""

from __future__ import annotations

TRACES, LOGS, METRICS = "traces", "logs", "metrics"

METHODS = {
    TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


class MalformedError(ValueError):
    """The bytes are not the OTLP message they should be."""
