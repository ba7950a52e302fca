"""A collector's memory and delay while one tenant sends more than it can take.

Two measurements, each with a collector of its own that has tokens for two tenants:

* memory: one tenant sends valid telemetry that fills every limit. Figures: resident memory after each round, and the
  latency of /healthz.
* alerts: one tenant sends new jobs with dead ranks without a pause, 300 in each request. Figures: how much later the
  stall of another tenant's job is alerted than without them, and the latency of /healthz.

Time in which other programs have the processors does not count for /healthz, but it does for the alerts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import cpu_seconds, memory_mb
from tests.support import floods
from tests.support.collector_process import Collector, running
from tests.support.flooder import flooding
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.health import HealthWatch
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.played_job import Job
from tests.support.tokens import OTHER_TEAM, TEAM, Player, token_options
from tests.support.waiting import wait_for

LIMIT_HEALTH = 1.5
LIMIT_MEMORY = 400.0
MIB = 1 << 20
KINDS = (
    (floods.stalled_job, LOGS),
    (floods.large_shapes, TRACES),
    (floods.calls_in_flight, TRACES),
    (floods.many_groups, LOGS),
)
AT_ONCE = 8
"""Large requests in flight at the same time."""
WAIT_SECONDS = 60.0


def resident(collector: Collector) -> float:
    """Return the collector's present memory in MiB."""
    return memory_mb(collector.process.pid, "VmRSS")


def cpu(collector: Collector) -> float:
    return cpu_seconds(collector.process.pid)


def show_health(watch: HealthWatch) -> str:
    shares = [f"{watch.percentile(share):.2f}" for share in (0.5, 0.9, 0.99)]
    return f"/healthz p50, p90, p99: {', '.join(shares)} s, at most {watch.slowest:.2f} s"


def memory(folder: Path, rounds: int) -> bool:
    with running(folder, "--quiet", *token_options(folder)) as collector:
        tenant = Player(collector, TEAM)
        with HealthWatch(collector).running() as watch:
            for number in range(rounds):
                for make, method in KINDS:
                    with contextlib.suppress(grpc.RpcError):
                        tenant.send(method, make(number, "team-a/"), compression=grpc.Compression.Gzip)
                print(
                    f"memory, round {number + 1:3}: {resident(collector):5.0f} MiB resident,"
                    f" at most {collector.resident() / MIB:5.0f}",
                    flush=True,
                )
            for make, method in KINDS[:2]:
                data = make(rounds, "team-a/")
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    sent = [pool.submit(tenant.send, method, data) for _ in range(2 * AT_ONCE)]
                taken = sum(one.exception() is None for one in sent)
                print(
                    f"memory, {len(sent)} x {len(data) / MIB:.0f} MiB, {AT_ONCE} at once, {taken} taken:"
                    f" at most {collector.resident() / MIB:.0f} MiB",
                    flush=True,
                )
        print(f"memory: {show_health(watch)}", flush=True)
        return collector.resident() / MIB <= LIMIT_MEMORY and watch.slowest <= LIMIT_HEALTH


def alert_delay(collector: Collector, alerts: AlertSink, job_id: str) -> float:
    """Return the seconds from the last call of a small job's stalled collective to its alert."""
    with Job(Player(collector, OTHER_TEAM), 4, job_id) as job:
        job.step()
        job.all_reported()
        job.step()
        job.skip(2)
        begun = time.monotonic()

        def alerted() -> bool:
            return any(alert["labels"]["job_id"] == job_id for post in list(alerts.posts) for alert in post)

        wait_for(alerted, WAIT_SECONDS)
        return time.monotonic() - begun


def alerts_in_flood(folder: Path, rounds: int, senders: int) -> bool:
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(contextlib.closing(AlertSink()))
        hook = stack.enter_context(contextlib.closing(Receiver()))
        options = ["--alertmanager", sink.url, "--webhook", hook.url, "--data", str(folder / "data")]
        collector = stack.enter_context(running(folder, "--quiet", *options, *token_options(folder)))
        quiet = alert_delay(collector, sink, "team-b/quiet")
        print(f"alerts: without a flood after {quiet:.1f} s", flush=True)
        watch = stack.enter_context(HealthWatch(collector).running())
        stack.enter_context(flooding(collector, senders))
        worst = 0.0
        for number in range(rounds):
            used, begun, since = cpu(collector), time.monotonic(), len(watch.latencies)
            delay = alert_delay(collector, sink, f"team-b/{number}")
            worst = max(worst, delay)
            share = (cpu(collector) - used) / (time.monotonic() - begun)
            slowest = max(watch.latencies[since:], default=0.0)
            print(
                f"alerts, round {number + 1}: after {delay:.1f} s; /healthz at most {slowest:.2f} s;"
                f" {share:.0%} of a core; {resident(collector):.0f} MiB; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        print(f"alerts: {show_health(watch)}; {len(sink.posts)} posts", flush=True)
        return watch.slowest <= LIMIT_HEALTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["memory", "alerts"])
    parser.add_argument("--rounds", type=int, default=40, help="of the memory's measurement")
    parser.add_argument("--alerts", type=int, default=5, help="light jobs whose alert is measured")
    parser.add_argument("--senders", type=int, default=1, help="processes that flood")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as name:
        if options.only != "alerts":
            good &= memory(Path(name) / "memory", options.rounds)
        if options.only != "memory":
            good &= alerts_in_flood(Path(name) / "alerts", options.alerts, options.senders)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
