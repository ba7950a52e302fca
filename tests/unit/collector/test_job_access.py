"""A token takes in telemetry of its jobs only, however a resource names them; and files of tokens and certificates that
cannot be used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network import tls
from otel_fr_collector.network import tokens as module
from otel_fr_collector.network.tokens import Access, Tokens, parse_tokens
from otel_fr_collector.otlp.signals import LOGS, METRICS, TRACES
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.receive.intake import IncomingRequest, Intake
from otel_fr_collector.receive.rejections import Reason, RejectedError
from otel_fr_collector.service import Service

from otel_fr import semconv
from tests.support.certificates import Certificates
from tests.support.otlp_messages import attribute, field
from tests.support.tokens import WRITER

OWN, OTHER = "team-a/train", "team-b/train"
TEAM = Access(read=False, write=True, prefix="team-a/")
ALL = Access(read=False, write=True)


def spans_of(*resources: Resource) -> bytes:
    """A trace request with one call; its resource field occurs once for each of ``resources``."""
    values = {semconv.GROUP_ID: "g", semconv.OPERATION: "all_reduce", semconv.SEQUENCE_ID: 3, semconv.JOB_ID: OTHER}
    span = Span(attributes=[attribute(key, value) for key, value in values.items()])
    scope = InstrumentationScope(name="s", attributes=[attribute(semconv.JOB_ID, OTHER)])
    rest = ResourceSpans(scope_spans=[ScopeSpans(scope=scope, spans=[span])])
    return field(1, b"".join(field(1, one.SerializeToString()) for one in resources) + rest.SerializeToString())


def report_of(*resources: Resource) -> bytes:
    """A logs request with one rank report."""
    body = {"v": 1, "rank": 0, "n": 1, "groups": [{"id": "g", "ranks": "0-1"}], "job_id": OTHER}
    record = LogRecord(
        event_name=semconv.EVENT_PROGRESS,
        body=AnyValue(string_value=json.dumps(body)),
        attributes=[attribute(semconv.JOB_ID, OTHER)],
    )
    rest = ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])
    return field(1, b"".join(field(1, one.SerializeToString()) for one in resources) + rest.SerializeToString())


def of(*pairs: tuple[str, Any]) -> Resource:
    def pair(key: str, value: Any) -> KeyValue:
        return KeyValue(key=key, value=value) if isinstance(value, AnyValue) else attribute(key, value)

    return Resource(attributes=[pair(*one) for one in pairs])


def take(access: Access, signal: str, data: bytes) -> Service:
    """A service that was sent this request; raises RejectedError."""
    service = Service(metrics := Metrics(), Outlets(metrics))

    async def play() -> None:
        intake = Intake(service)
        await intake.take(IncomingRequest(intake, "client", access, "", signal), signal, data)

    asyncio.run(play())
    return service


def jobs(service: Service) -> set[str]:
    return {run.job for run in service.runs.by_id}


RANK = (semconv.RANK, 0)
SERVICE = (semconv.SERVICE_NAME, OWN)
FORGED = [
    [of(RANK, (semconv.JOB_ID, OTHER))],
    [of(RANK, (semconv.JOB_ID, OTHER), (semconv.JOB_ID, 7), SERVICE)],
    [of(RANK, (semconv.JOB_ID, 7), (semconv.JOB_ID, OTHER), SERVICE)],
    [of(RANK, (semconv.JOB_ID, OTHER), (semconv.JOB_ID, ""), SERVICE)],
    [of(RANK, (semconv.JOB_ID, OTHER), (semconv.JOB_ID, AnyValue()), SERVICE)],
    [of(RANK, (semconv.JOB_ID, OTHER), (semconv.JOB_ID, OWN))],
    [of(RANK, (semconv.JOB_ID, OWN), (semconv.JOB_ID, OTHER))],
    [of((semconv.JOB_ID, OWN)), of(RANK, (semconv.JOB_ID, OTHER))],
    [of(RANK, (semconv.JOB_ID, OTHER)), of((semconv.JOB_ID, OWN))],
    [of(RANK), of((semconv.JOB_ID, OTHER))],
    # Without a job id the ranks of all jobs would share one run.
    [of(RANK, SERVICE)],
    [of(RANK, SERVICE, (semconv.JOB_ID, ""))],
    [of(RANK)],
    [of((semconv.JOB_ID, OWN), (semconv.JOB_ID, "")), of(RANK)],
]


@pytest.mark.parametrize("resources", FORGED)
@pytest.mark.parametrize(("signal", "request_of"), [(TRACES, spans_of), (LOGS, report_of), (METRICS, spans_of)])
def test_a_token_for_some_jobs_is_refused_for_a_resource_of_another(
    resources: list[Resource], signal: str, request_of: Callable[..., bytes]
) -> None:
    own = of(RANK, (semconv.JOB_ID, OWN))
    for data in (request_of(*resources), request_of(own) + request_of(*resources)):
        with pytest.raises(RejectedError) as refused:
            take(TEAM, signal, data)
        assert refused.value.reason in (Reason.DENIED, Reason.MALFORMED)


@pytest.mark.parametrize(("signal", "request_of"), [(TRACES, spans_of), (LOGS, report_of)])
def test_a_token_for_some_jobs_takes_in_their_telemetry(signal: str, request_of: Callable[..., bytes]) -> None:
    """Also a resource in two parts, which every decoder of a complete request joins. Only the resource counts, not what
    a scope, a span, a log record or a report says of a job."""
    for resources in ([of(RANK, (semconv.JOB_ID, OWN))], [of(RANK), of((semconv.JOB_ID, OWN))]):
        assert jobs(take(TEAM, signal, request_of(*resources))) == {OWN}
    assert jobs(take(TEAM, signal, request_of(of(SERVICE)))) == set()


@pytest.mark.parametrize(("signal", "request_of"), [(TRACES, spans_of), (LOGS, report_of)])
@pytest.mark.parametrize("resources", FORGED)
def test_a_resource_that_does_not_say_clearly_what_it_is_of_is_invalid(
    resources: list[Resource], signal: str, request_of: Callable[..., bytes]
) -> None:
    """For a token for all jobs: each item is counted, and a run is only made of a clear name."""
    service = take(ALL, signal, request_of(*resources))
    assert jobs(service) <= {OTHER, ""}
    counted = [s for f in service.metrics.items_received.collect() for s in f.samples if s.name.endswith("_total")]
    assert sum(sample.value for sample in counted) == 1


values = st.sampled_from([OWN, OTHER, "", "team-a/"]).map(lambda text: AnyValue(string_value=text)) | st.sampled_from(
    [AnyValue(), AnyValue(int_value=0), AnyValue(bytes_value=OWN.encode()), AnyValue(bool_value=True)]
)
keys = st.sampled_from([semconv.JOB_ID, semconv.SERVICE_NAME, semconv.RUN_ID, semconv.JOB_ATTEMPT, semconv.RANK])
pairs = st.lists(st.builds(lambda key, value: KeyValue(key=key, value=value), keys, values), max_size=4)
rank_pairs = st.builds(lambda more: [attribute(*RANK), *more], pairs) | pairs
parts = st.lists(st.builds(lambda items: Resource(attributes=items), rank_pairs), min_size=1, max_size=3)


@given(st.lists(parts, min_size=1, max_size=2), st.sampled_from([(TRACES, spans_of), (LOGS, report_of)]))
def test_what_is_taken_in_with_a_token_is_of_its_jobs(
    entries: list[list[Resource]], kind: tuple[str, Callable[..., bytes]]
) -> None:
    signal, request_of = kind
    data = b"".join(request_of(*resources) for resources in entries)
    # A backend that decodes the complete request sees no other job either.
    whole = (ExportTraceServiceRequest if signal == TRACES else ExportLogsServiceRequest).FromString(data)
    seen = whole.resource_spans if isinstance(whole, ExportTraceServiceRequest) else whole.resource_logs
    named = {item.value.string_value for one in seen for item in one.resource.attributes if item.key == semconv.JOB_ID}
    try:
        service = take(TEAM, signal, data)
    except RejectedError:
        return
    assert all(job.startswith(TEAM.prefix) for job in jobs(service))
    assert OTHER not in named


TWICE = [
    [of(RANK, (semconv.JOB_ID, OWN), (semconv.JOB_ID, OWN))],
    [of(RANK, (semconv.JOB_ID, OWN), (semconv.HOST_NAME, "a"), (semconv.HOST_NAME, "b"))],
    [of(RANK, (semconv.JOB_ID, OWN), SERVICE, (semconv.SERVICE_NAME, OTHER))],
    [of(SERVICE, SERVICE)],
    [of(SERVICE, (semconv.HOST_NAME, "a"), (semconv.HOST_NAME, 7))],
    [of((semconv.JOB_ID, OWN), SERVICE, (semconv.SERVICE_NAME, OTHER))],
]


@pytest.mark.parametrize("resources", TWICE)
@pytest.mark.parametrize(("signal", "request_of"), [(TRACES, spans_of), (LOGS, report_of)])
def test_a_repeated_attribute_is_rejected_only_where_the_token_is_checked_for_it(
    resources: list[Resource], signal: str, request_of: Callable[..., bytes]
) -> None:
    """Some SDKs send host.name or service.name twice; that says nothing about another tenant."""
    service = take(TEAM, signal, request_of(*resources))
    assert jobs(service) == ({OWN} if any(item.key == semconv.RANK for item in resources[0].attributes) else set())


@pytest.mark.parametrize("first", [OWN, OTHER])
def test_two_service_names_are_rejected_where_they_stand_for_the_job(first: str) -> None:
    names = [(semconv.SERVICE_NAME, name) for name in (first, OTHER if first == OWN else OWN)]
    with pytest.raises(RejectedError) as refused:
        take(TEAM, TRACES, spans_of(of(*names)))
    assert refused.value.reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "line",
    ["short write *", f"{WRITER} admin *", f"{WRITER} write", f"{WRITER} write a b"],
)
def test_a_token_line_that_cannot_be_used_is_reported_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="line 2") as caught:
        parse_tokens(f"# first\n{line}\n")
    assert line.split()[0] not in str(caught.value)
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(ValueError, match="line 1"):
        Tokens(path)


def test_a_file_that_stays_unusable_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again each second."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    path = tmp_path / "tokens"
    path.write_text(f"{WRITER} write *\n")
    tokens = Tokens(path)
    path.unlink()
    for _ in range(3):
        assert tokens.find(f"Bearer {WRITER}") is not None
    path.write_text("nonsense\n")
    for _ in range(3):
        tokens.end_revoked()
    assert [record.message.count("keeping the old ones") for record in caplog.records] == [1, 1]
    path.write_text("another-0123456789 write *\n")
    assert tokens.find(f"Bearer {WRITER}") is None
    assert tokens.version == 1


def test_a_certificate_that_stays_unusable_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again with each connection."""
    monkeypatch.setattr(tls, "CHECK_SECONDS", 0.0)
    files = Certificates(tmp_path)
    served = tls.ServerTls(files.cert, files.key)
    before = served.expires
    files.renew_server(days=2.0)
    files.key.unlink()
    for _ in range(3):
        served._newest()
    assert [record.message.count("keeping the old one") for record in caplog.records] == [1]
    assert served.expires == before
