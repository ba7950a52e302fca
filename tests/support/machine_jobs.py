"""A real torchrun job on simulated hosts (`tests.support.machines`), and the collector on one of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support import torchrun
from tests.support.commands import OTEL_FR
from tests.support.external_programs import OTELCOL
from tests.support.json_lines import json_lines
from tests.support.machines import Host
from tests.support.paths import DEPLOY, JOBS, ROOT
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until

_API = "http://127.0.0.1:8080/api/v1"
RANKS = 2
"""Ranks on each host."""
STALL = 3.0
"""OTEL_FR_STALL_SECONDS of the job."""
SETTLED, LONGEST = 8.0, 40.0
"""`HostCollector.settle` returns after so many seconds without a change of an incident, or after so many at most."""


class HostCollector:
    """A collector on a host, and the changes that it has published."""

    def __init__(self, host: Host, folder: Path, *options: str) -> None:
        folder.mkdir()
        self.host = host
        self._file, log = folder / "incidents.jsonl", folder / "collector.log"
        command = [*OTEL_FR, "collector", "--grpc", "0.0.0.0:4317", "--http", "0.0.0.0:8080", "--alert-after", "0"]
        self.process = host.start([*command, "--incidents", str(self._file), *options], log, _environment())
        until(lambda: "gRPC on" in log.read_text())

    def settle(self) -> None:
        """Wait until nothing new has been published for `SETTLED` seconds, but at most `LONGEST` seconds."""
        end = time.monotonic() + LONGEST
        known, since = -1, time.monotonic()
        while time.monotonic() < min(since + SETTLED, end):
            if len(self.lines()) != known:
                known, since = len(self.lines()), time.monotonic()
            time.sleep(0.1)

    def heard(self) -> int:
        """Return how many running ranks the collector shows."""
        text = self.host.output("curl", "-s", f"{_API}/jobs")
        return sum(job["ranks"].get("running", 0) for job in json.loads(text)["jobs"])

    def slow_links(self) -> list[dict[str, Any]]:
        """Return the only job's slow links, from the API."""
        (job,) = json.loads(self.host.output("curl", "-s", f"{_API}/jobs"))["jobs"]
        found = json.loads(self.host.output("curl", "-s", f"{_API}/jobs/{job['id']}"))["slow_links"]
        assert isinstance(found, list)
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of /metrics with these labels."""
        families = text_string_to_metric_families(self.host.output("curl", "-s", "http://127.0.0.1:8080/metrics"))
        samples = [one for family in families for one in family.samples if one.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    def lines(self) -> list[dict[str, Any]]:
        """Return each published change."""
        return json_lines(self._file)

    def causes(self) -> list[dict[str, Any]]:
        """Return the last state of each cause, in order of opening."""
        return cause_incidents(list({line["id"]: line for line in self.lines()}.values()))


def start_node_collector(host: Host, folder: Path, to: Host) -> str:
    """Start an OpenTelemetry Collector with ``deploy/otelcol/node.yaml`` on a host.

    Args:
        folder: for its queue and its log.
        to: the host of otel-fr's collector, which may start later.

    Returns:
        the endpoint for programs on the same host.
    """
    env = {**_environment(), "OTEL_FR_ENDPOINT": f"{to.name}:4317", "QUEUE": str(folder / f"queue-{host.name}")}
    log = folder / f"otelcol-{host.name}.log"
    host.start([str(OTELCOL), "--config", str(DEPLOY / "otelcol" / "node.yaml")], log, env)
    until(lambda: host.output("curl", "-s", "http://127.0.0.1:13133"))
    return "http://127.0.0.1:4317"


class HostJob:
    """A job with two ranks on each host. The first host has the rendezvous store.

    Args:
        collector: None: the ranks have no collector.
        rdzv: torchrun's ``--rdzv-backend``.
        nodes: torchrun's ``--nnodes``.
        env: added to the ranks' environment; may name another endpoint.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        *,
        collector: HostCollector | None,
        rdzv: str = "otel-fr",
        nodes: str = "",
        restarts: int = 0,
        **env: str,
    ) -> None:
        folder.mkdir()
        self.folder, self.hosts = folder, list(hosts)
        self._rdzv = f"--rdzv-backend={rdzv}", f"--rdzv-endpoint={hosts[0].name}:29400", "--rdzv-id=llama"
        self._nodes, self._restarts = nodes or str(len(hosts)), restarts
        self._env = {**_environment(), "OTEL_FR_STALL_SECONDS": str(STALL), "OTEL_FR_CHECKS": "none"}
        if collector is not None:
            self._env["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{collector.host.name}:4317"
        self._env |= env
        self.agents: dict[str, subprocess.Popen[str]] = {}
        self.logs: dict[str, Path] = {}
        for host in hosts:
            self.join(host)

    def join(self, host: Host) -> None:
        """Start the agent of a host."""
        command = [
            *torchrun.FRESH,  # the servers that fork ranks do not run on the hosts
            *(f"--nnodes={self._nodes}", f"--nproc-per-node={RANKS}", f"--max-restarts={self._restarts}"),
            *(*self._rdzv, "--rdzv-conf=last_call_timeout=1", str(JOBS / "hosts.py"), str(self.folder)),
        ]
        dumps = self.folder / f"dumps-{host.name}"  # not on a shared file system
        env = {**self._env, "OTEL_FR_DUMP_DIR": str(dumps)}
        self.logs[host.name] = self.folder / f"{host.name}.log"
        self.agents[host.name] = host.start(command, self.logs[host.name], env, self.folder)

    def steps(self) -> dict[int, tuple[int, int, str, str]]:
        """Return rank -> (steps done, ranks, host, attempt)."""
        found = {}
        for path in self.folder.glob("steps-*"):
            with contextlib.suppress(ValueError):
                step, world, host, attempt = path.read_text().split()
                found[int(path.name.removeprefix("steps-"))] = int(step), int(world), host, attempt
        return found

    def wait_steps(self, ranks: int, more: int = 20) -> None:
        """Wait until the job has ``ranks`` ranks, and each has done ``more`` further steps or a new attempt's first."""
        begun = self.steps()

        def has_moved(rank: int, step: int, world: int, where: tuple[str, ...]) -> bool:
            before = begun.get(rank)
            done = before[0] if before is not None and before[2:] == where else 0
            return world == ranks and step >= done + more

        until(lambda: sum(has_moved(rank, *one[:2], one[2:]) for rank, one in self.steps().items()) == ranks)

    def touch(self, name: str) -> None:
        """Make a file that the job waits for."""
        (self.folder / name).touch()

    def stop(self) -> dict[str, int]:
        """Let the job end cleanly, and return the exit statuses of its agents."""
        self.touch("stop")
        return {name: agent.wait(PATIENCE) for name, agent in self.agents.items()}


def _environment() -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'collector'}"
    given = torchrun.base_environment()
    return {**given, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
