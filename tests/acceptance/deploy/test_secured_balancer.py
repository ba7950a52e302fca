"""deploy/otelcol's load balancer with TLS and tokens: a real OpenTelemetry Collector in front of a real collector."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.deploy.test_pipelines import Gateway
from tests.support.certificates import Certificates
from tests.support.collector_process import Collector, running
from tests.support.external_programs import OTELCOL, get, needs_otelcol, started
from tests.support.paths import DEPLOY
from tests.support.played_job import Job
from tests.support.ports import free_port
from tests.support.tokens import READER, TEAM, Player, token_options
from tests.support.waiting import wait_for

pytestmark = needs_otelcol


@contextlib.contextmanager
def balancer(folder: Path, certificates: Certificates, collector: Collector, *names: str) -> Iterator[Gateway]:
    """Run the balancer with ``loadbalancing.yaml`` and the files ``names``."""
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("OTLP_GRPC", "OTLP_HTTP", "HEALTH")}
    files = {"TLS_CERT": certificates.cert, "TLS_KEY": certificates.key, "TLS_CA": certificates.ca_file}
    env = {**addresses, **{name: str(file) for name, file in files.items()}, "TLS_NAME": "localhost"}
    env |= {f"COLLECTOR_{number}": collector.grpc for number in (1, 2, 3)}
    configs = [part for name in ("loadbalancing", *names) for part in ("--config", f"{DEPLOY}/otelcol/{name}.yaml")]
    log = folder / "otelcol.log"
    with started(log, str(OTELCOL), *configs, env=env) as process:
        assert wait_for(lambda: get(f"http://{env['HEALTH']}")), log.read_text()
        with certificates.channel(env["OTLP_GRPC"].replace("127.0.0.1", "localhost")) as channel:
            yield Gateway(channel, process)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


def test_tls_from_the_job_to_the_collector(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options()
    with (
        running(tmp_path / "run", *options, tls=certificates.context()) as collector,
        balancer(tmp_path, certificates, collector, "loadbalancing-tls") as between,
        Job(between, 2) as job,
    ):
        job.step()
        job.skip(1)
        assert wait_for(lambda: [one["culprit_ranks"] for one in collector.incidents()] == [[1]])


@pytest.mark.skipif(
    not OTELCOL or "headers_setter" not in subprocess.check_output([OTELCOL, "components"], text=True),
    reason="this OpenTelemetry Collector has no headers_setter (contrib)",
)
def test_each_job_s_own_token_reaches_the_collector(tmp_path: Path, certificates: Certificates) -> None:
    options = (*certificates.server_options(), *token_options(tmp_path))
    names = ("loadbalancing-tls", "loadbalancing-tokens")
    with (
        running(tmp_path / "run", *options, tls=certificates.context()) as collector,
        balancer(tmp_path, certificates, collector, *names) as between,
        Job(Player(between, TEAM), 2, job_id="team-a/one") as job,
        Job(Player(between, READER), 2, job_id="team-a/two") as other,
    ):
        job.step()
        other.step()
        job.skip(1)
        assert wait_for(lambda: jobs_of(collector, "incidents") == {"team-a/one"})
        assert jobs_of(collector, "jobs") == {"team-a/one"}


def jobs_of(collector: Collector, name: str) -> set[str]:
    """Return the jobs in an answer."""
    answer = collector.fetch(f"/api/v1/{name}", Authorization=f"Bearer {READER}")
    return {one["job"] for one in json.loads(answer.body)[name]}
