"""The collector's advice before a restart, from real collectors, and from servers that are no collectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.checks import advice
from otel_fr.checks.model import Status
from otel_fr.rendezvous.advice import Advice, ask
from tests.support.certificates import Certificates
from tests.support.collector_process import Collector, running
from tests.support.http_servers import Handler, http_server
from tests.support.otlp_sink import grpc_sink
from tests.support.played_job import Job
from tests.support.ports import free_address
from tests.support.tokens import READER, TEAM, WRITER, write_tokens
from tests.support.waiting import until

NODE = {"OTEL_RESOURCE_ATTRIBUTES": "host.name=node-b"}


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector of a job with a dead rank, and with a rank on node-b that asked for its node's exclusion."""
    with running(tmp_path_factory.mktemp("run")) as found, Job(found, 2) as job:
        job.ranks[1].host = "node-b"
        job.step()
        job.all_reported()
        job.ranks[1].ask("exclude_node", "NIC flaps")
        job.ranks[1].exit(signal=9)
        until(found.causes)
        yield found


def asked(env: dict[str, str], seconds: float = 0.0, seen: str = "", job: str = "job-7") -> Advice | str:
    return ask(job, seconds, seen, {"PATH": "/usr/bin:/bin", **env})


def test_over_grpc_and_over_http_the_advice_is_the_same(collector: Collector) -> None:
    over_grpc = asked({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}", **NODE}, 60.0)
    assert isinstance(over_grpc, Advice)
    assert (over_grpc.recommendation, over_grpc.nodes, over_grpc.is_here) == ("exclude_node", ("node-b",), True)
    assert over_grpc.text == "rank 1 on node node-b asked for it: NIC flaps"
    over_http = asked({"OTEL_FR_COLLECTOR": collector.http}, 60.0)
    assert over_http == over_grpc._replace(is_here=False)
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.http, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    assert asked({**both, "OTEL_FR_COLLECTOR": collector.http, **NODE}) == over_grpc
    assert asked({"OTEL_FR_COLLECTOR": collector.http}, seen=over_grpc.run) == "no failure of its last run is known"
    assert asked({"OTEL_FR_COLLECTOR": collector.http}, job="other") == (
        "status 404: no such run; runs are dropped some time after their end, unless they have incidents"
    )


def test_who_cannot_advise_is_said() -> None:
    nobody = asked({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{free_address()}"})
    assert isinstance(nobody, str)
    with grpc_sink() as sink:
        assert asked({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}, 60.0) == (
            "the OTLP endpoint is not an otel-fr collector"
        )
    assert "OTEL_FR_COLLECTOR is set" in str(asked({}, 60.0))

    class Nested(Handler):
        def do_GET(self) -> None:
            self.reply(200, 10_000 * b"[")

    with http_server(Nested) as server:
        found = asked({"OTEL_FR_COLLECTOR": f"http://127.0.0.1:{server.server_port}"}, 60.0)
    assert str(found).endswith("is not an otel-fr collector")


def test_the_tokens_of_ranks_and_readers_are_used(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    with running(tmp_path / "run", "--tokens", str(tokens)) as guarded:
        endpoint = f"http://{guarded.grpc}"

        def over_grpc(token: str) -> Advice | str:
            headers = f"authorization=Bearer {token}"
            return asked({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_HEADERS": headers})

        assert over_grpc(WRITER) == "no such run is known"
        assert "not for 'job-7'" in str(over_grpc(TEAM))
        assert "read-only" in str(over_grpc(READER))
        http = {"OTEL_FR_COLLECTOR": guarded.http}
        assert str(asked({**http, "OTEL_FR_TOKEN": READER})).startswith("status 404")
        assert "does not accept the token in OTEL_FR_TOKEN: " in str(asked(http, 60.0))
        wrong = "the OTLP endpoint does not accept the token in OTEL_EXPORTER_OTLP_HEADERS: "
        assert str(over_grpc("no-such-token")).startswith(wrong)


def test_the_certificate_of_the_ranks_is_used_for_https_too(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with running(tmp_path / "run", *certificates.server_options(), tls=certificates.context()) as guarded:
        http = {"OTEL_FR_COLLECTOR": guarded.http}
        assert "CERTIFICATE_VERIFY_FAILED" in str(asked(http))
        trusted = {**http, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificates.ca_file)}
        assert str(asked(trusted)).startswith("status 404: no such run")


def test_two_jobs_of_one_name_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher of one job would follow the other job's advice."""
    stop = {"run_id": "b", "attempt": 0, "recommendation": "stop", "exclude_nodes": [], "reasons": [], "failure": {}}
    others: list[dict[str, str]] = [{"run_id": "a"}]
    monkeypatch.setattr(advice, "_over_grpc", lambda job, env: lambda: {**stop, "other_runs": others})
    refused = advice.find("job-7", 0.0, "", {})
    assert refused.status is Status.SKIPPED
    assert refused.text == "2 runs are called 'job-7' at the same time: give each job a name of its own"
    others.clear()
    assert advice.find("job-7", 0.0, "", {}).status is Status.OK
