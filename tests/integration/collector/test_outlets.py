"""The outlets of incidents: Alertmanager, an OTLP backend, monitors, the file of ``--incidents``; and their ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from otel_fr_collector import timeline
from otel_fr_collector.outlets import outbox
from otel_fr_collector.outlets.alertmanager import Alertmanager

from otel_fr import identity, semconv
from otel_fr.control.v1 import control_pb2
from otel_fr.incident import unix
from otel_fr.incident_trace import LEAD
from tests.support.collector_process import Collector, running
from tests.support.commands import otel_fr
from tests.support.grpc_calls import TRACES, WATCH
from tests.support.incident_receivers import AlertSink
from tests.support.otlp_backends import MemoryBackend
from tests.support.played_job import STALL, Job
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for


@pytest.fixture
def alerts() -> Iterator[AlertSink]:
    sink = AlertSink()
    yield sink
    sink.close()


def test_every_alertmanager_gets_the_alert_and_its_end(tmp_path: Path, alerts: AlertSink) -> None:
    second = AlertSink()
    options = ["--alertmanager", alerts.url, "--alertmanager", second.url + "/", "--alert-label", "team=ml"]
    options += ["--external-url", "https://fr.example", "--link", "runbook=https://wiki/{category}"]
    options += ["--link", "dashboard=https://g/d/x?from={from_ms}&to={to_ms}"]
    with running(tmp_path, *options) as collector, Job(collector, 2) as job:
        waiting = job.hang(1)
        number = collector.wait_cause()["id"]
        job.go_on(waiting)
        collector.wait_cause(lambda one: one["state"] == "resolved")
        assert collector.stop() == 0
    second.close()
    for sink in (alerts, second):
        first, last = sink.posts[0][0], sink.posts[-1][0]
        assert first["labels"] == {
            "alertname": "TorchDistributedIncident",
            "severity": "critical",
            "job_id": "job-7",
            "category": "missing_rank",
            "process_group": "default_pg",
            "host": "node-0",
            "team": "ml",
        }
        assert first["generatorURL"] == f"https://fr.example/#/incidents/{number}"
        assert first["annotations"]["runbook_url"] == "https://wiki/missing_rank"
        assert first["annotations"]["dashboard_url"].startswith("https://g/d/x?from=1")
        assert "trace_url" not in first["annotations"]
        assert re.search(r" rank 0 waits since \d\d:\d\d:\d\d UTC$", first["annotations"]["summary"])
        assert first["annotations"]["hosts"] == "node-0"
        assert first["annotations"]["culprit_ranks"] == "1"
        assert first["annotations"]["incident_id"] == number
        assert first["annotations"]["sequence_id"] == "2"
        assert "rank 1 (node-0) did not join" in first["annotations"]["summary"]
        assert first["endsAt"] > last["endsAt"]  # in the future while it fired, in the past once resolved
        assert first["labels"] == last["labels"]


def test_a_rank_that_is_late_and_then_stuck_has_an_alert_of_each(alerts: AlertSink) -> None:
    with (
        VirtualCollector(outlets=lambda metrics, _: [Alertmanager([alerts.url], metrics)]) as collector,
        collector.job(3) as job,
    ):
        job.step()
        job.ranks[1].extra |= {"starved_s": 0.9 * STALL, "python_blocked": True}
        job.skip(1)
        late = collector.wait_cause()
        assert (late["category"], late["severity"], late["rule"]) == ("straggler", "warning", "starved_rank")
        collector.deliver(lambda: alerts.posts)
        collector.time.advance(STALL)
        stuck = collector.wait_cause(lambda one: one["category"] == "rank_stuck")
        assert (stuck["id"], stuck["severity"]) == (late["id"], "critical")

        def firing() -> dict[str, bool]:
            """Return by severity: the alert lasts."""
            found = {one["labels"]["severity"]: one for post in alerts.posts for one in post}
            return {severity: (unix(one["endsAt"]) or 0.0) > time.time() for severity, one in found.items()}

        collector.deliver(lambda: firing() == {"warning": False, "critical": True})


def test_an_alertmanager_that_fails_is_retried_and_delays_nothing(
    alerts: AlertSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.05)
    alerts.status = 500
    with (
        VirtualCollector(outlets=lambda metrics, _: [Alertmanager([alerts.url], metrics)]) as collector,
        collector.job(2) as job,
    ):
        job.skip(1)
        collector.wait_cause()
        collector.deliver(lambda: collector.deliveries("alertmanager 127.0.0.1", "failed") >= 2)
        alerts.status = 200
        collector.deliver(lambda: alerts.posts)
    assert caplog.text.count("alertmanager 127.0.0.1: could not deliver an incident: status 500") == 1


def test_an_alert_is_posted_again_and_again_while_it_fires_also_after_a_refusal(
    alerts: AlertSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alertmanager forgets alerts that are not posted again, and may refuse a post because of another alert in it."""
    monkeypatch.setattr(timeline, "ALERT_RESEND", 0.05)
    alerts.status = 400
    with (
        VirtualCollector(outlets=lambda metrics, _: [Alertmanager([alerts.url], metrics)]) as collector,
        collector.job(2) as job,
    ):
        waiting = job.hang(1)
        collector.wait_cause()
        collector.deliver(lambda: len(alerts.requests) >= 2)
        alerts.status = 200
        collector.deliver(lambda: len(alerts.posts) >= 3)
        first, second = (post[0] for post in alerts.posts[:2])
        assert (first["labels"], first["startsAt"]) == (second["labels"], second["startsAt"])
        assert first["endsAt"] < second["endsAt"]
        job.go_on(waiting)
        collector.deliver(lambda: alerts.posts[-1][0]["endsAt"] < first["endsAt"])
        told = len(alerts.posts)
        collector.time.advance(2.0)
        time.sleep(0.2)
        assert len(alerts.posts) == told


def test_traces_are_forwarded_byte_for_byte_with_an_incident_trace_above_them() -> None:
    sink = MemoryBackend(busy=2)
    with VirtualCollector(forward=[sink]) as collector, collector.job(2) as job:
        sent = []
        for rank in job.ranks:
            span = rank.complete(rank.issue(job.world), send=False)
            sent.append(rank.send_spans([span]))
        call = job.skip(1)[0]
        incident = collector.wait_cause()
        sent.append(job.ranks[0].send_spans([job.ranks[0].complete(call, send=False)]))
        collector.time.advance(3.0)
        assert len(sink.taken) >= 4
        assert [data for data in sink.taken if data in sent] == sent  # in order, none changed, none lost
        added = ExportTraceServiceRequest.FromString(next(data for data in sink.taken if data not in sent))
        root, culprit, waiting = (one.scope_spans[0].spans[0] for one in added.resource_spans)
        assert {culprit.parent_span_id, waiting.parent_span_id} == {root.span_id}
        assert (culprit.name, waiting.name) == ("rank 1: not here", "waits: all_reduce default_pg [rank 0]")
        assert root.trace_id.hex() == incident["trace_id"] == call.trace(job.run).hex()
        assert root.span_id == identity.root_span_id(root.trace_id)
        assert not root.parent_span_id
        assert root.name == "INCIDENT missing_rank: rank 1"
        assert root.status.code == Status.STATUS_CODE_ERROR
        assert root.status.message.startswith("rank 1 (node-0) did not join")
        # The start comes from the age in a report, so it is later by the report's time on its way.
        assert -0.005 <= root.start_time_unix_nano / 1e9 + LEAD - call.wall < STALL
        assert root.start_time_unix_nano < root.end_time_unix_nano
        values = {item.key: item.value for item in root.attributes}
        assert values[semconv.ERROR_TYPE].string_value == "missing_rank"
        assert values[semconv.INCIDENT_ID].string_value == incident["id"]
        assert [v.int_value for v in values[semconv.INCIDENT_CULPRITS].array_value.values] == [1]
        service = {item.key: item.value.string_value for item in added.resource_spans[0].resource.attributes}
        assert service["service.name"] == "trainer"
        sent_total = "otel_fr_collector_forward_requests_sent_total"
        assert collector.metric(sent_total, signal="traces") == len(sink.taken)


def test_malformed_requests_are_not_forwarded() -> None:
    sink = MemoryBackend()
    with VirtualCollector(forward=[sink]) as collector, collector.job(1) as job:
        with pytest.raises(grpc.RpcError):
            collector.send(TRACES, b"\xff\xff")
        job.step()
        collector.time.advance(1.0)
        assert sink.taken
        assert b"\xff\xff" not in sink.taken


def test_monitors_receive_commands() -> None:
    with VirtualCollector() as collector, collector.job(2) as job:
        monitor, other = collector.watch(job), collector.watch(collector.job(2))
        job.all_reported()
        job.skip(1)
        incident = collector.wait_cause()
        first = monitor.next_command()
        assert first.dump.incident_id == incident["id"]
        assert "did not join" in first.dump.reason
        job.ranks[1].exit(signal=9)
        collector.time.advance(5.0)
        second = monitor.next_command()
        while not second.HasField("peer_failed"):
            second = monitor.next_command()
        assert (list(second.peer_failed.ranks), second.peer_failed.kind) == ([1], "ended")
        assert "was killed by signal 9 (SIGKILL)" in second.peer_failed.reason
        late = collector.watch(job)  # a monitor that connects later hears of it, too
        assert list(late.next_command().peer_failed.ranks) == [1]
        collector.service.control.close()
        assert other.others() == [], "it is of another run"


def test_control_streams_end_with_the_collector(tmp_path: Path) -> None:
    with running(tmp_path) as collector:
        request = control_pb2.WatchRequest(job_id="job", run_id="run", rank=0)
        commands = collector.stream(WATCH)(request.SerializeToString(), timeout=PATIENCE)
        assert commands.initial_metadata()
        collector.process.send_signal(signal.SIGTERM)
        assert list(commands) == []  # the stream ends without an error
        assert collector.process.wait(PATIENCE) == 0


def test_unsettled_findings_are_published_before_the_process_ends(tmp_path: Path) -> None:
    with running(tmp_path) as collector, Job(collector, 2) as job:
        job.hang(1)
        job.quiet()
        job.ranks[1].exit(signal=9)
        assert collector.stop() == 0
        assert collector.causes()[0]["culprit_ranks"] == [1]
        assert "rank_dead: rank 1" in collector.out_file.read_text()


def test_a_setting_that_cannot_be_used_ends_the_process() -> None:
    options = ("--incidents", "/nowhere/at/all/incidents.jsonl", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    done = otel_fr("collector", *options)
    assert done.returncode == 2
    assert "/nowhere/at/all/incidents.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_in_use_is_reported_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as collector:
        taken = collector.http.removeprefix("http://")
        for options in (
            ("--grpc", collector.grpc, "--http", "127.0.0.1:0"),
            ("--grpc", "127.0.0.1:0", "--http", taken),
            ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--otlp-http", taken),
        ):
            done = otel_fr("collector", *options)
            assert done.returncode == 2
            assert "cannot listen on" in done.stderr


PROBLEM = "degraded: incidents are missing from the --incidents file: it cannot be written\n"


def test_a_pipe_without_a_reader_is_an_error_and_no_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = otel_fr("collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--incidents", str(pipe))
    assert done.returncode == 2
    assert f"--incidents {pipe}: no process reads this pipe" in done.stderr


def open_incident(collector: Collector, alerts: AlertSink, name: str, jobs: contextlib.ExitStack) -> None:
    """Start a job with one incident. Its alert arrives, whatever happens to the file.

    The job reports until ``jobs`` ends, because its silence would change the incident and add lines to the file.
    """
    jobs.enter_context(Job(collector, 2, name)).hang(1)
    assert wait_for(lambda: any(alert["labels"]["job_id"] == name for post in alerts.posts for alert in post))


def drain(reader: int) -> bytes:
    """Read all data in a pipe."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reader, 1 << 20):
            found += data
    return found


def test_a_pipe_gets_whole_lines_and_is_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    alerts = AlertSink()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    options = ("--alertmanager", alerts.url, "--incidents", str(pipe))
    with running(tmp_path / "run", *options) as collector, contextlib.ExitStack() as jobs:
        open_incident(collector, alerts, "read", jobs)
        first = drain(reader)
        assert json.loads(first.splitlines()[0])["job"] == "read"
        assert first.endswith(b"\n")
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" " * 4_096)
        open_incident(collector, alerts, "full", jobs)
        assert wait_for(lambda: collector.get("/healthz") == PROBLEM)
        os.close(writer)
        drain(reader)
        open_incident(collector, alerts, "again", jobs)
        assert wait_for(lambda: collector.get("/healthz") == "ok\n")
        assert {json.loads(line)["job"] for line in drain(reader).splitlines()} >= {"again"}
    os.close(reader)
    alerts.close()


def test_a_file_that_cannot_be_written_shows_in_the_health(tmp_path: Path) -> None:
    """A limit of file sizes stands for a full disk. The incomplete line is completed later."""
    alerts = AlertSink()
    with running(tmp_path, "--alertmanager", alerts.url) as collector, contextlib.ExitStack() as jobs:
        pid = collector.process.pid
        open_incident(collector, alerts, "before", jobs)
        whole = collector.incidents_file.stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (whole + 100, resource.RLIM_INFINITY))
        open_incident(collector, alerts, "during", jobs)
        assert wait_for(lambda: collector.get("/healthz") == PROBLEM)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        open_incident(collector, alerts, "after", jobs)
        assert wait_for(lambda: collector.get("/healthz") == "ok\n")
        assert {line["job"] for line in collector.lines()} >= {"before", "during", "after"}
    alerts.close()
