"""The OTLP event of failed checks, sent with the settings of OpenTelemetry's own exporter."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.resources import Resource as SdkResource

from otel_fr import semconv as names
from otel_fr._version import __version__
from otel_fr.checks.model import Outcome, Status
from otel_fr.otlp_attributes import attributes, utf8
from otel_fr.otlp_sender import sender_from_env
from otel_fr.platform_attributes import platform_attributes


def send(results: Iterable[Sequence[str]], job: str) -> Outcome:
    """Send one event for each result. Blocks as long as the exporter does.

    Args:
        results: kind, target, status and text of each.
        job: the job's name; empty: unknown.

    Raises:
        Exception: whatever the exporter raises on unusable settings.
    """
    request = make_request(results, job, time.time_ns())
    count = len(request.resource_logs[0].scope_logs[0].log_records)
    if sender_from_env("logs").send(request, count):
        return Outcome(Status.OK, f"{count} sent")
    return Outcome(Status.FAILED, "the endpoint did not accept it")


def make_request(results: Iterable[Sequence[str]], job: str, time_ns: int) -> ExportLogsServiceRequest:
    """Build the request. Its resource has no rank. Arguments: as in `send`."""
    request = ExportLogsServiceRequest()
    of_scope = request.resource_logs.add(resource=_resource(job)).scope_logs.add(
        scope=InstrumentationScope(name=names.SCOPE_NAME, version=__version__)
    )
    for kind, target, status, text in results:
        failed = status == Status.FAILED.value
        of_scope.log_records.add().CopyFrom(
            LogRecord(
                time_unix_nano=time_ns,
                observed_time_unix_nano=time_ns,
                event_name=names.EVENT_CHECK_FAILED,
                severity_number=SeverityNumber.SEVERITY_NUMBER_ERROR if failed else SeverityNumber.SEVERITY_NUMBER_WARN,
                severity_text="ERROR" if failed else "WARN",
                body=AnyValue(string_value=utf8(text)),
                attributes=attributes({names.CHECK_KIND: kind, names.CHECK_TARGET: target, names.CHECK_STATUS: status}),
            )
        )
    return request


def _resource(job: str) -> Resource:
    given = {**platform_attributes(os.environ), **SdkResource.create().attributes}
    given.setdefault(names.HOST_NAME, socket.gethostname())
    if job:
        given[names.JOB_ID] = job
    return Resource(attributes=attributes(given))
