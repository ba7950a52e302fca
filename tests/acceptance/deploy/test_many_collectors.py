"""Three collectors with one database behind a load balancer. One is killed; no incident is lost or told twice.

The load balancer is a real OpenTelemetry Collector with the configuration of deploy/otelcol. Its resolver asks for the
addresses of a host name, as for a headless service in Kubernetes. A file with that name is mounted over /etc/hosts in
the process's own mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import grpc
import pytest
import yaml

from tests.acceptance.deploy.test_pipelines import Gateway
from tests.support.collector_process import STORED_FIRST, Collector, patched, running
from tests.support.external_programs import OTELCOL, get, load, needs_otelcol, started
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.played_job import Issued, Job
from tests.support.ports import free_port
from tests.support.postgres import postgres_server
from tests.support.waiting import until, wait_for

HOST = "otel-fr-collectors"
ADDRESSES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
JOBS = 30
RANKS = 2

pytestmark = [
    needs_otelcol,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("unshare"), reason="a process with an /etc/hosts of its own needs root"
    ),
]


class Site:
    """The collectors by address, the load balancer, and the receivers of alerts and webhooks."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._port = free_port()
        self._hosts = folder / "hosts"
        self.alerts, self.webhook = AlertSink(), Receiver()
        stack.callback(self.alerts.close)
        stack.callback(self.webhook.close)
        database = folder / "store"
        database.write_text(stack.enter_context(postgres_server()).new_database())
        self._options = ["--store", str(database), "--alertmanager", self.alerts.url, "--webhook", self.webhook.url]
        self.collectors = {address: self._collector(address) for address in ADDRESSES}
        self.resolve(*ADDRESSES)
        self.gateway = self._load_balancer()

    def _collector(self, address: str) -> Collector:
        options = ["--grpc", f"{address}:{self._port}", "--otlp-http", "off", "--data", str(self._folder / address)]
        folder, program = self._folder / f"run-{address}", patched(**STORED_FIRST)
        return self._stack.enter_context(running(folder, *options, *self._options, program=program))

    def _load_balancer(self) -> Gateway:
        config = load("otelcol/loadbalancing.yaml")
        resolver = {"hostname": HOST, "port": str(self._port), "interval": "1s"}
        config["exporters"]["loadbalancing"]["resolver"] = {"dns": resolver}
        file = self._folder / "loadbalancing.yaml"
        file.write_text(yaml.safe_dump(config))
        names = ("OTLP_GRPC", "OTLP_HTTP", "HEALTH")
        env = {name: f"127.0.0.1:{free_port()}" for name in names}
        inside = f"mount --bind {self._hosts} /etc/hosts && exec {OTELCOL} --config {file}"
        log = self._folder / "otelcol.log"
        process = self._stack.enter_context(started(log, "unshare", "--mount", "sh", "-c", inside, env=env))
        assert wait_for(lambda: get(f"http://{env['HEALTH']}")), log.read_text()
        return Gateway(self._stack.enter_context(grpc.insecure_channel(env["OTLP_GRPC"])), process)

    def resolve(self, *addresses: str) -> None:
        """Give the host name these addresses."""
        self._hosts.write_text("".join(f"{address} {HOST}\n" for address in addresses))

    def jobs_at(self, address: str) -> set[str]:
        """Return the jobs that a collector judges, because their ranks report to it."""
        jobs = (get(f"{self.collectors[address].http}/api/v1/jobs") or {"jobs": []})["jobs"]
        return {one["job"] for one in jobs if one["ranks"].get("running") and one["collector_page"] is None}

    def told(self) -> Counter[tuple[str, str]]:
        """Return how many different messages with (job, state) the webhook received."""
        messages = {headers["webhook-id"]: json.loads(body) for _, _, headers, body in self.webhook.requests}
        return Counter((one["incident"]["job"], one["incident"]["state"]) for one in messages.values())

    def alerting(self) -> dict[str, set[frozenset[tuple[str, str]]]]:
        """Return the label sets of the posted alerts, by job. Alertmanager distinguishes alerts by their labels."""
        found: dict[str, set[frozenset[tuple[str, str]]]] = {}
        for one in (alert for post in self.alerts.posts for alert in post):
            found.setdefault(one["labels"]["job_id"], set()).add(frozenset(one["labels"].items()))
        return found


def shows(at: Collector, expected: dict[str, list[str]]) -> None:
    """Wait until a collector's API lists incidents of these jobs in these states, and no others."""

    def states() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in get(f"{at.http}/api/v1/incidents")["incidents"]:
            found.setdefault(one["job"], []).append(one["state"])
        return found

    assert wait_for(lambda: states() == expected), states()


def test_a_collector_is_killed_and_no_incident_is_lost_or_told_twice(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        site = Site(tmp_path, stack)
        jobs = {
            f"job-{index}": stack.enter_context(Job(site.gateway, RANKS, job_id=f"job-{index}", period=1.0))
            for index in range(JOBS)
        }
        for job in jobs.values():
            job.step()
        until(lambda: set().union(*map(site.jobs_at, site.collectors)) == set(jobs))
        homes = {address: site.jobs_at(address) for address in site.collectors}
        assert sum(map(len, homes.values())) == JOBS, "a job reports to two collectors"

        # At each collector, two jobs hang before the kill, and two jobs after it.
        before = [name for own in homes.values() for name in sorted(own)[:2]]
        after = [name for own in homes.values() for name in sorted(own)[2:4]]
        waiting: dict[str, list[Issued]] = {name: jobs[name].skip(1) for name in before}
        until(lambda: all(site.told()[name, "firing"] for name in before))

        victim = max(homes, key=lambda address: len(homes[address]))
        survivors = [one for address, one in site.collectors.items() if address != victim]
        site.collectors[victim].kill()
        site.resolve(*(address for address in site.collectors if address != victim))
        waiting |= {name: jobs[name].skip(1) for name in after}
        others = [address for address in site.collectors if address != victim]
        until(lambda: homes[victim] <= set().union(*map(site.jobs_at, others)))
        until(lambda: all(site.told()[name, "firing"] for name in after))

        # Each survivor shows each incident of all collectors once, as open.
        for one in survivors:
            shows(one, {name: ["firing"] for name in waiting})
        for name, calls in waiting.items():
            jobs[name].go_on(calls)
        # Each incident was told once as open and once as resolved, with one alert.
        until(lambda: all(site.told()[name, "resolved"] for name in waiting))
        assert site.told() == {(name, state): 1 for name in waiting for state in ("firing", "resolved")}
        assert {name: len(labels) for name, labels in site.alerting().items()} == dict.fromkeys(waiting, 1)
