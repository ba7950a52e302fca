"""What a backend's URL and headers mean; the sender of a queue and the sample, each alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otel_fr_collector.forward import selection
from otel_fr_collector.forward.backends import parse_backend, read_headers
from otel_fr_collector.forward.forwarder import LARGE_BYTES, Forwarder
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.forward.selection import Selection, parts_of
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import MAX_RETRY_AFTER, bounded_delay, read_retry_after
from otel_fr_collector.otlp import partial
from otel_fr_collector.otlp.signals import TRACES

from tests.support.otlp_messages import spans


def test_a_selection_loses_nothing_of_the_spans_it_keeps() -> None:
    first, second = ExportTraceServiceRequest.FromString(spans(1)), ExportTraceServiceRequest.FromString(spans(2))
    both = ExportTraceServiceRequest(resource_spans=[*first.resource_spans, *second.resource_spans])
    both.resource_spans[0].schema_url = "https://example.com/schema"
    both.resource_spans[0].scope_spans[0].scope.name = "scope"
    wanted = (1).to_bytes(16, "big")
    kept = ExportTraceServiceRequest.FromString(partial.select_traces(both.SerializeToString(), wanted.__eq__))
    assert list(kept.resource_spans) == [both.resource_spans[0]]
    assert partial.select_traces(both.SerializeToString(), lambda _: False) == b""
    assert partial.select_traces(both.SerializeToString(), lambda _: True) == both.SerializeToString()


def kept_of(selection: Selection, trace: int) -> list[bytes]:
    """What must be forwarded of the kept requests once the trace is marked."""
    name = trace.to_bytes(16, "big")
    return parts_of(name, selection.mark(name))


def test_held_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "HOLD_BYTES", 5_000)
    now = [0.0]
    holding = Selection(clock=lambda: now[0])
    for n in range(1, 101):
        holding.take(spans(n, size=100))
    assert kept_of(holding, 1) == []
    assert len(kept_of(holding, 100)) == 1
    now[0] = selection.HOLD_SECONDS + 1
    holding.take(spans(101))
    assert kept_of(holding, 99) == []


def test_a_trace_that_is_marked_while_a_request_is_selected_is_forwarded_once() -> None:
    selection, request = Selection(), spans(1)
    select = selection.take(request)
    assert [*kept_of(selection, 1), select()] == [request, b""]
    assert selection.take(request)() == request


def test_many_kept_requests_are_searched_beside_other_work() -> None:
    """They take tenths of a second, and an incident may have a hundred consequences, each in another trace."""

    async def play() -> list[int]:
        queues = Queues(["backend"], 1 << 30)
        forwarder = Forwarder(queues, [], Metrics(), selection=Selection())
        await forwarder.take(TRACES, spans(1, size=LARGE_BYTES))
        forwarder.keep_trace((1).to_bytes(16, "big"))
        await asyncio.sleep(0)
        counts = [len(queues.waiting["backend"])]
        await asyncio.gather(*forwarder._offering)
        return [*counts, len(queues.waiting["backend"])]

    assert asyncio.run(play()) == [0, 1]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://tempo:4317", (True, False, "tempo:4317")),
        ("https://tempo", (True, True, "tempo:4317")),
        ("grpc://[::1]", (True, False, "[::1]:4317")),
        ("grpcs://tempo:443", (True, True, "tempo:443")),
        ("http://tempo:4318", (False, False, "http://tempo:4318")),
        ("http://tempo:4318/v1/traces", (False, False, "http://tempo:4318")),
        ("https://otlp.example.com/otlp/", (False, True, "https://otlp.example.com/otlp")),
    ],
)
def test_what_a_backends_url_means(url: str, place: tuple[bool, bool, str]) -> None:
    found = parse_backend(url)
    assert (found.is_grpc, found.is_secure, found.address) == place


@pytest.mark.parametrize(
    "url", ["tempo:4317", "ftp://x", "http://", "grpc://x/path", "https://u:p@x/a", "http://x:99999"]
)
def test_what_is_no_backends_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_backend(url)


def test_headers_of_unknown_backends_and_broken_lines_are_refused_without_showing_them(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    for line in ("grpc://a authorization s3cret", "grpc://b authorization: s3cret"):
        path.write_text(line)
        with pytest.raises(ValueError, match="line 1") as caught:
            read_headers(path, ("grpc://a",))
        assert "s3cret" not in str(caught.value)


def test_both_forms_of_retry_after_are_read() -> None:
    assert read_retry_after("7", 0) == 7
    assert read_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 40.0) == 20
    assert read_retry_after("soon", 0) is None
    assert read_retry_after(None, 0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("86400", MAX_RETRY_AFTER),
        ("9" * 5_000, MAX_RETRY_AFTER),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 -0000", 0.0),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("Thu, 99 Jan 99999999999 99:99:99 GMT", None),
        ("", None),
        ("\u0667", 7.0),
    ],
)
def test_no_server_delays_a_retry_for_long(text: str, seconds: float | None) -> None:
    assert read_retry_after(text, time.time()) == seconds


def test_a_delay_is_a_number_from_0_to_5_minutes() -> None:
    asked = (-1.0, 0.0, 2.5, 86_400.0, float("inf"), float("nan"), float("-inf"))
    assert [bounded_delay(seconds) for seconds in asked] == [0.0, 0.0, 2.5, 300.0, 300.0, 0.0, 0.0]
