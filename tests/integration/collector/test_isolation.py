"""One job, receiver or backend does not keep another's incidents from being published."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from otel_fr import semconv
from otel_fr.control.v1 import control_pb2
from tests.support.collector_process import Collector, running
from tests.support.grpc_calls import WATCH
from tests.support.incident_receivers import AlertSink, FakeGrafana, Receiver
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


def test_text_that_is_not_unicode_reaches_every_receiver_and_the_monitors(tmp_path: Path) -> None:
    """dtypes as JSON text in a span, one with the escape of a lone surrogate: it is in the summary of the mismatch."""
    with with_every_outlet(tmp_path) as (collector, alerts, hook, grafana), Job(collector, 2, "odd") as job:
        job.step()
        request = control_pb2.WatchRequest(job_id=job.id, run_id=job.run, rank=0)
        commands = iter(collector.stream(WATCH)(request.SerializeToString()))
        job.all_reported()
        for rank, dtype in zip(job.ranks, ("Float", "Odd\udcff"), strict=True):
            with rank.lock:
                span = rank.complete(rank.issue(job.world), send=False)
                rank.last = None  # a report would say otherwise
            kept = [item for item in span.attributes if item.key not in (semconv.INPUT_DTYPES, semconv.OUTPUT_DTYPES)]
            del span.attributes[:]
            span.attributes.extend(kept)
            span.attributes.append(attribute(semconv.INPUT_DTYPES, json.dumps([dtype])))
            rank.send_spans([span])
        incident = collector.wait_cause()
        assert "Odd?" in incident["summary"]
        assert wait_for(lambda: alerts.posts and hook.requests and grafana.marks)
        assert "Odd?" in alerts.posts[0][0]["annotations"]["summary"]
        assert "Odd?" in json.loads(hook.requests[0][3])["incident"]["summary"]
        assert "Odd?" in grafana.marks[1]["text"]
        assert wait_for(lambda: "Odd?" in collector.out_file.read_text())
        assert "Odd?" in control_pb2.Command.FromString(next(commands)).dump.reason
        assert collector.metric("otel_fr_collector_internal_errors_total", part="control") == 0
