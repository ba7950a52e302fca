"""No job, receiver or backend prevents the publication of another's incidents."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from otel_fr import semconv
from otel_fr.control.v1 import control_pb2
from tests.support.collector_process import Collector, running
from tests.support.grpc_calls import WATCH
from tests.support.hostile_servers import Behaviour, bomb, drips, floods, hangs, hostile_server
from tests.support.incident_receivers import AlertSink, FakeGrafana, Receiver
from tests.support.otlp_backends import grpc_backend
from tests.support.otlp_messages import attribute
from tests.support.played_job import Job
from tests.support.waiting import wait_for


@contextlib.contextmanager
def with_every_outlet(folder: Path, *more: str) -> Iterator[tuple[Collector, AlertSink, Receiver, FakeGrafana]]:
    with contextlib.ExitStack() as stack:
        alerts = stack.enter_context(contextlib.closing(AlertSink()))
        hook = stack.enter_context(contextlib.closing(Receiver()))
        grafana = stack.enter_context(contextlib.closing(FakeGrafana()))
        token = folder / "token"
        token.write_text(FakeGrafana.TOKEN)
        options = ["--alertmanager", alerts.url, "--webhook", hook.url, "--data", str(folder / "data")]
        options += ["--grafana", grafana.url, "--grafana-token-file", str(token), *more]
        yield stack.enter_context(running(folder, *options)), alerts, hook, grafana


def test_text_that_is_not_ascii_reaches_every_receiver_and_the_monitors(tmp_path: Path) -> None:
    """The text is a dtype in a span, which the summary of the mismatch contains."""
    with with_every_outlet(tmp_path) as (collector, alerts, hook, grafana), Job(collector, 2, "odd") as job:
        job.step()
        request = control_pb2.WatchRequest(job_id=job.id, run_id=job.run, rank=0)
        commands = iter(collector.stream(WATCH)(request.SerializeToString()))
        job.all_reported()
        for rank, dtype in zip(job.ranks, ("Float", "Oddé"), strict=True):
            with rank.lock:
                span = rank.complete(rank.issue(job.world), send=False)
                rank.last = None  # a report would contradict the span
            kept = [item for item in span.attributes if item.key not in (semconv.INPUT_DTYPES, semconv.OUTPUT_DTYPES)]
            del span.attributes[:]
            span.attributes.extend(kept)
            span.attributes.append(attribute(semconv.INPUT_DTYPES, json.dumps([dtype])))
            rank.send_spans([span])
        incident = collector.wait_cause()
        assert "Oddé" in incident["summary"]
        assert wait_for(lambda: alerts.posts and hook.requests and grafana.marks)
        assert "Oddé" in alerts.posts[0][0]["annotations"]["summary"]
        assert "Oddé" in json.loads(hook.requests[0][3])["incident"]["summary"]
        assert "Oddé" in grafana.marks[1]["text"]
        assert wait_for(lambda: "Oddé" in collector.out_file.read_text())
        assert "Oddé" in control_pb2.Command.FromString(next(commands)).dump.reason
        assert collector.metric("otel_fr_collector_internal_errors_total", part="control") == 0


@pytest.mark.parametrize("behaviour", [hangs, drips, floods])
def test_a_slow_receiver_neither_delays_the_others_nor_the_end(tmp_path: Path, behaviour: Behaviour) -> None:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(hostile_server(behaviour)) for _ in range(4)]
        options = ["--alertmanager", urls[0], "--webhook", urls[1], "--webhook", urls[2]]
        options += ["--forward", urls[3] + "/otlp", "--stop-seconds", "1"]
        collector, alerts, hook, grafana = stack.enter_context(with_every_outlet(tmp_path, *options))
        with Job(collector, 2) as job:
            waiting = job.hang(1)
            assert wait_for(lambda: alerts.posts and hook.requests and grafana.marks)
            job.go_on(waiting)
            assert wait_for(lambda: b'"resolved"' in hook.requests[-1][3])
            assert wait_for(lambda: alerts.posts[-1][0]["endsAt"] < alerts.posts[0][0]["endsAt"])
            assert wait_for(lambda: "timeEnd" in grafana.marks[1])
            assert collector.stop(signal.SIGTERM) == 0


def test_answers_are_neither_read_whole_nor_decompressed(tmp_path: Path) -> None:
    size = 1 << 28
    with contextlib.ExitStack() as stack:
        good, bad = (stack.enter_context(hostile_server(bomb(size, status))) for status in (200, 500))
        options = [f"--{option}={url}" for option in ("alertmanager", "webhook") for url in (good, bad)]
        options += ["--grafana", bad, "--forward", good + "/otlp", "--forward", bad + "/otlp"]
        collector = stack.enter_context(running(tmp_path, *options))
        job = stack.enter_context(Job(collector, 2))
        job.hang(1)
        collector.wait_cause()

        def counted(name: str, **labels: str) -> bool:
            return bool(wait_for(lambda: collector.metric(f"otel_fr_collector_{name}_total", **labels) >= 1))

        for outcome in ("sent", "failed"):
            for outlet in ("alertmanager", "webhook"):
                assert counted("deliveries", outlet=f"{outlet} 127.0.0.1", outcome=outcome)
        assert counted("deliveries", outlet="grafana 127.0.0.1", outcome="failed")
        assert counted("forward_requests_sent", backend=good + "/otlp")
        assert counted("forward_requests_dropped", backend=bad + "/otlp", reason="rejected")
        assert collector.resident() < size


def test_a_backend_that_compresses_its_answers_is_understood(tmp_path: Path) -> None:
    """The collector uses only the status of an answer, so gRPC does not decompress the answer."""
    with (
        grpc_backend(compression=grpc.Compression.Gzip, answer=bytes(1 << 20)) as backend,
        running(tmp_path, "--forward", backend.url) as collector,
        Job(collector, 1) as job,
    ):
        job.step()
        assert wait_for(lambda: collector.metric("otel_fr_collector_forward_requests_sent_total") >= 1)
