"""The OpenTelemetry Collector with deploy/'s configurations, between a played job and real collectors."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.collector_process import Collector, running
from tests.support.external_programs import OTELCOL, get, load, needs_otelcol, started
from tests.support.grpc_calls import METRICS, unary
from tests.support.hostile_http2 import pinged
from tests.support.paths import DEPLOY
from tests.support.played_job import Job
from tests.support.ports import free_address
from tests.support.rank_metrics import metrics_of
from tests.support.waiting import wait_for


class Gateway:
    """A running OpenTelemetry Collector. Played jobs can send to it as to a collector."""

    def __init__(self, channel: grpc.Channel, process: subprocess.Popen[bytes], address: str = "") -> None:
        self.channel, self.process, self.address = channel, process, address

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return unary(self.channel, method)(data, wait_for_ready=True, **options)


@contextlib.contextmanager
def gateway(folder: Path, name: str, **env: str) -> Iterator[Gateway]:
    own = {**{name: free_address() for name in ("OTLP_GRPC", "OTLP_HTTP", "HEALTH")}, **env}
    log = folder / f"{name}.log"
    with started(log, str(OTELCOL), "--config", str(DEPLOY / "otelcol" / f"{name}.yaml"), env=own) as process:
        assert wait_for(lambda: get(f"http://{own['HEALTH']}")), log.read_text()
        with grpc.insecure_channel(own["OTLP_GRPC"]) as channel:
            yield Gateway(channel, process, own["OTLP_GRPC"])


OVERLAYS = {"loadbalancing-tls", "loadbalancing-tokens"}
"""Files that complete another file. test_secured_balancer.py tests them."""


FILES = sorted({path.stem for path in (DEPLOY / "otelcol").glob("*.yaml")} - OVERLAYS)


@needs_otelcol
@pytest.mark.parametrize("name", FILES)
def test_the_otel_collector_takes_the_configuration(name: str) -> None:
    command = [str(OTELCOL), "validate", "--config", str(DEPLOY / "otelcol" / f"{name}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def to_otel_fr(name: str) -> list[Any]:
    """Return the gRPC settings of each exporter in a file that sends to otel-fr."""
    exporters = load(f"otelcol/{name}.yaml")["exporters"]
    ours = [one for key, one in exporters.items() if not key.endswith("/backend")]
    return [one.get("protocol", {}).get("otlp", one) for one in ours]


@pytest.mark.parametrize("name", FILES)
def test_a_connection_that_loses_everything_is_given_up_soon(name: str) -> None:
    """The kernel retries at growing intervals: after an outage of 30 s, the next retry may be 20 s later."""
    for exporter in to_otel_fr(name):
        assert exporter["keepalive"] == {"time": "10s", "timeout": "5s"}
    receiver = load(f"otelcol/{name}.yaml")["receivers"]["otlp"]["protocols"]["grpc"]
    assert receiver["keepalive"]["enforcement_policy"] == {"min_time": "5s", "permit_without_stream": True}


@needs_otelcol
@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_senders_may_look_after_their_connections(tmp_path: Path, name: str) -> None:
    """By default, an OpenTelemetry Collector allows a ping each five minutes, and two more."""
    with gateway(tmp_path, name, OTEL_FR_ENDPOINT=free_address(), QUEUE=str(tmp_path / "queue")) as between:
        assert pinged(between.address, times=20, pause=0.05) == "too_many_pings"
        assert pinged(between.address, times=4, pause=5.1) == ""


@needs_otelcol
def test_fanout_gives_otel_fr_everything_and_the_backend_the_traces_once_it_is_back(tmp_path: Path) -> None:
    received, steps = "otel_fr_collector_items_received_total", 40
    address = free_address()
    with running(tmp_path / "ours") as ours:
        env = {"OTEL_FR_ENDPOINT": ours.grpc, "BACKEND_ENDPOINT": address}
        with gateway(tmp_path, "fanout", **env) as between, Job(between, 3) as job:
            with running(tmp_path / "first", "--grpc", address) as backend:
                job.step()
                assert wait_for(lambda: backend.metric(received, signal="traces") == 3)
                assert backend.metric(received, signal="logs") == 0
                backend.kill()
            for _ in range(steps):
                job.step()
            job.skip(1)
            assert ours.wait_cause()["culprit_ranks"] == [1]
            with running(tmp_path / "second", "--grpc", address) as backend:
                assert wait_for(lambda: backend.metric(received, signal="traces") >= 3 * steps)
            assert wait_for(lambda: ours.metric(received, signal="traces") == 3 * (steps + 1))
    exporter = load("otelcol/fanout.yaml")["exporters"]["otlp_grpc/backend"]
    assert exporter["retry_on_failure"]["max_elapsed_time"] == "1h", "that long it may be away"


@needs_otelcol
def test_a_nodes_spans_survive_the_collector_and_the_process_on_the_node(tmp_path: Path) -> None:
    received = "otel_fr_collector_items_received_total"
    address, steps = free_address(), 20
    env = {"OTEL_FR_ENDPOINT": address, "QUEUE": str(tmp_path / "queue")}
    with running(tmp_path / "first", "--grpc", address) as first, gateway(tmp_path, "node", **env) as node:
        with Job(node, 3) as job:
            job.step()
            assert wait_for(lambda: first.metric(received, signal="traces") == 3)
            first.kill()
            for _ in range(steps):
                job.step()
        node.process.kill()
        node.process.wait()
    with running(tmp_path / "second", "--grpc", address) as second, gateway(tmp_path, "node", **env) as node:
        # An accepted request arrives twice if the process was killed between sending and removing it.
        assert wait_for(lambda: second.metric(received, signal="traces") >= 3 * steps)
        with Job(node, 3, job_id="next") as job:
            job.step()
            job.skip(1)
            assert second.wait_cause(lambda one: one["job"] == "next")["culprit_ranks"] == [1]


def test_sampling_thins_out_the_backend_only() -> None:
    """All sampling policies but "failed" and "slow" keep one trace in a hundred. otel-fr's pipeline has no sampler."""
    pipelines = load("otelcol/sampled.yaml")["service"]["pipelines"]
    ours = [one for one in pipelines.values() if "otlp_grpc/otel_fr" in one["exporters"]]
    assert len(ours) == 3
    assert not any("tail_sampling" in one["processors"] for one in ours)
    assert "tail_sampling" in pipelines["traces/backend"]["processors"]


def jobs_seen(collector: Collector) -> dict[str, Any]:
    return {one["job"]: one for one in json.loads(collector.get("/api/v1/incidents"))["incidents"]}


@needs_otelcol
def test_loadbalancing_gives_each_run_to_one_collector_whole(tmp_path: Path) -> None:
    """All spans and rank reports of a run reach the same of three collectors, so each hung job is explained once."""
    count = 8
    with contextlib.ExitStack() as stack:
        collectors = []
        for index in range(3):
            (tmp_path / str(index)).mkdir()
            collectors.append(stack.enter_context(running(tmp_path / str(index))))
        env = {f"COLLECTOR_{index}": one.grpc for index, one in enumerate(collectors, 1)}
        between = stack.enter_context(gateway(tmp_path, "loadbalancing", **env))
        jobs = [stack.enter_context(Job(between, 3, job_id=f"job-{index}")) for index in range(count)]
        for job in jobs:
            job.step()
            job.skip(1)
            between.send(METRICS, metrics_of(0, job=job.id, run=job.run))

        def reported_jobs() -> list[str]:
            return sorted(name for one in collectors for name in jobs_seen(one))

        assert wait_for(lambda: len(reported_jobs()) >= count), reported_jobs()
        for job in jobs:
            job.all_reported()
        assert reported_jobs() == sorted(job.id for job in jobs)
        assert all(one["category"] == "missing_rank" for each in collectors for one in jobs_seen(each).values())
        assert sum(bool(jobs_seen(one)) for one in collectors) >= 2, "every run went to the same collector"

        def each_has_the_spans_of_its_runs() -> bool:
            """Return True if each collector has the spans of its runs: one step of three ranks for each."""
            received = "otel_fr_collector_items_received_total"
            return all(one.metric(received, signal="traces") == 3 * len(jobs_seen(one)) for one in collectors)

        assert wait_for(each_has_the_spans_of_its_runs)
        calls = "otel_fr_collective_calls_total"
        assert wait_for(lambda: all(len(one.samples(calls)) == len(jobs_seen(one)) for one in collectors))
        assert all(one.metric("otel_fr_collector_ranks") == 3 * len(jobs_seen(one)) for one in collectors)
