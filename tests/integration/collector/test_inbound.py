"""What a client may send to a real collector: other tenants' jobs keep their incidents, and the collector its speed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.parser import text_string_to_metric_families

from otel_fr import semconv
from otel_fr.control.v1 import control_pb2
from tests.support import hostile
from tests.support.collector_process import Collector, running
from tests.support.grpc_calls import WATCH, refused
from tests.support.health import HealthWatch
from tests.support.otlp_messages import attribute, field
from tests.support.rank_metrics import metrics_of
from tests.support.tokens import READER, TEAM, bearer, token_options
from tests.support.waiting import PATIENCE

JSON = "application/json"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    folder = tmp_path_factory.mktemp("guarded")
    with running(folder, *token_options(folder)) as collector:
        yield collector


def _logs_json(*job_ids: dict[str, Any]) -> bytes:
    """A rank that has died, as OTLP/JSON; its job id occurs once for each of ``job_ids``."""
    report = {"v": 1, "rank": 0, "n": 1, "groups": [], "exit": {"code": 0, "signal": 9, "clean": False, "known": True}}
    record = {"eventName": semconv.EVENT_EXITED, "body": {"stringValue": json.dumps(report)}}
    attributes = [
        {"key": semconv.RANK, "value": {"intValue": "0"}},
        {"key": semconv.SERVICE_NAME, "value": {"stringValue": "team-a/train"}},
        *({"key": semconv.JOB_ID, "value": value} for value in job_ids),
    ]
    entry = {"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": [record]}]}
    return json.dumps({"resourceLogs": [entry]}).encode()


def test_a_token_for_one_team_makes_no_incident_of_another(guarded: Collector) -> None:
    other, own = {"stringValue": "team-b/train"}, {"stringValue": "team-a/train"}
    for values in ((other,), (other, {"intValue": "7"}), ({"intValue": "7"}, other), (other, own), (own, other), ()):
        answer = guarded.post("/v1/logs", _logs_json(*values), JSON, Authorization=f"Bearer {TEAM}")
        assert answer.status in (400, 403), (values, answer)
    assert guarded.post("/v1/logs", _logs_json(own), JSON, Authorization=f"Bearer {TEAM}").status == 200
    assert guarded.wait_cause()["job"] == "team-a/train"
    jobs = json.loads(guarded.fetch("/api/v1/jobs", Authorization=f"Bearer {READER}").body)["jobs"]
    assert [job["job"] for job in jobs] == ["team-a/train"]
    assert {one["job"] for one in guarded.incidents()} == {"team-a/train"}


def test_a_token_for_one_team_counts_no_calls_for_another(guarded: Collector) -> None:
    calls = "otel_fr_collective_calls_total"

    def counted() -> set[str]:
        page = guarded.fetch("/metrics", Authorization=f"Bearer {READER}").body.decode()
        families = text_string_to_metric_families(page)
        return {one.labels["job_id"] for family in families for one in family.samples if one.name == calls}

    for job, status in (("team-b/train", 403), ("team-a/train", 200)):
        answer = guarded.post("/v1/metrics", metrics_of(0, job=job), Authorization=f"Bearer {TEAM}")
        assert answer.status == status
    assert counted() == {"team-a/train"}


def test_a_control_stream_without_a_job_needs_a_token_for_all_jobs(guarded: Collector) -> None:
    request = control_pb2.WatchRequest(run_id="r").SerializeToString()
    stream = guarded.stream(WATCH)(request, metadata=bearer(TEAM), timeout=10)
    assert refused(partial(list, stream)) == grpc.StatusCode.PERMISSION_DENIED


def test_a_control_stream_ends_when_what_the_monitor_says_later_is_no_request(guarded: Collector) -> None:
    request = control_pb2.WatchRequest(job_id="team-a/train", run_id="r", others=[1]).SerializeToString()
    watch = guarded.channel.stream_stream(WATCH, None, None)
    good = watch(iter([request] * 3), metadata=bearer(TEAM))
    good.initial_metadata()
    bad = watch(iter([request, b"\xff"]), metadata=bearer(TEAM), timeout=PATIENCE)
    assert list(bad) == []
    assert good.is_active()
    good.cancel()  # type: ignore[no-untyped-call]


MIB = 1024 * 1024
MOST_RESIDENT = 400 * MIB
SLOWEST_ANSWER = 6.0
"""Seconds. On an idle machine the answer takes milliseconds; what is tested made it take tens of seconds."""


def _flood(level: int) -> bytes:
    """16 MiB of empty resources (0), scopes (1), items (2), attributes of an item (3) or of the resource (4)."""
    rank = Resource(attributes=[attribute(semconv.RANK, 0), attribute(semconv.JOB_ID, "flood")]).SerializeToString()
    size = 16 * MIB - 200
    if level == 0:
        return b"\x0a\x00" * (size // 2)
    if level == 1:
        return field(1, field(1, rank) + b"\x12\x00" * (size // 2))
    if level == 2:
        return field(1, field(1, rank) + field(2, b"\x12\x00" * (size // 2)))
    if level == 3:
        key = KeyValue(key=semconv.GROUP_ID, value=AnyValue(string_value="g")).SerializeToString()
        return field(1, field(1, rank) + field(2, field(2, field(9, key) + b"\x4a\x00\x32\x00" * (size // 4))))
    return field(1, field(1, rank + b"\x0a\x00" * (size // 2)) + field(2, field(2, b"")))


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_a_small_request_of_many_empty_parts_neither_blocks_the_collector_nor_fills_its_memory(
    tmp_path: Path, signal: str
) -> None:
    with running(tmp_path / "run") as collector, HealthWatch(collector).running() as watch:
        statuses = []
        for level in range(5):
            packed = gzip.compress(_flood(level), 9)
            assert len(packed) < 200_000
            statuses.append(collector.post(f"/v1/{signal}", packed, Content_Encoding="gzip").status)
        assert statuses == [413] * 5
        assert collector.metric("otel_fr_collector_internal_errors_total", part="ingest") == 0
        resident = collector.resident()
    assert watch.latencies
    assert resident < MOST_RESIDENT, f"{resident / MIB:.0f} MiB"
    assert watch.slowest < SLOWEST_ANSWER


def _json_flood(kind: str) -> bytes:
    """16 MiB, or 500,000 values, of JSON: small or nested objects, or a text with characters of 4 bytes each."""
    head, end = b'{"resourceSpans":[{"scopeSpans":[{"spans":[', b"]}]}]}"
    size = 16 * MIB - 200
    if kind == "objects":
        return head + b",".join([b"{}"] * (size // 3)) + end
    if kind == "most objects":
        return head + b",".join([b'{"status":{}}'] * 160_000) + end
    if kind == "nested":
        return b'{"resourceSpans":[' * (size // 18)
    if kind == "text":
        text = "😀".encode() + b"a" * (size - 100)
        return head + b'{"attributes":[{"key":"a","value":{"stringValue":"' + text + b'"}}]}' + end
    return head + b'{"attributes":[{"key":"a","value":{"intValue":"' + b"1" * (size - 100) + b'"}}]}' + end


def test_a_small_request_of_much_json_neither_blocks_the_collector_nor_fills_its_memory(tmp_path: Path) -> None:
    found = {}
    with running(tmp_path / "run") as collector, HealthWatch(collector).running() as watch:
        for kind in ("objects", "most objects", "nested", "text", "number"):
            packed = gzip.compress(_json_flood(kind), 9)
            assert len(packed) < 100_000
            found[kind] = collector.post("/v1/traces", packed, JSON, Content_Encoding="gzip").status
        assert found == {"objects": 413, "most objects": 200, "nested": 413, "text": 413, "number": 400}
        resident = collector.resident()
    assert resident < MOST_RESIDENT, f"{resident / MIB:.0f} MiB"
    assert watch.slowest < SLOWEST_ANSWER


@pytest.mark.parametrize(
    ("signal", "kind"),
    [("traces", hostile.long_tails), pytest.param("logs", hostile.long_exceptions, marks=pytest.mark.long)],
)
def test_what_a_hostile_client_leaves_behind_is_bounded(
    tmp_path: Path, signal: str, kind: Callable[[int], bytes]
) -> None:
    with running(tmp_path / "run") as collector, HealthWatch(collector).running() as watch:
        for number in range(25):
            packed = gzip.compress(kind(number), 1)
            assert collector.post(f"/v1/{signal}", packed, Content_Encoding="gzip").status == 200
        resident = collector.resident()
    assert resident < MOST_RESIDENT, f"{resident / MIB:.0f} MiB"
    assert watch.slowest < SLOWEST_ANSWER
