"""Attribution of failed jobs, over HTTP and gRPC, with a launcher's requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc

from otel_fr.attribution.v1 import attribution_pb2
from tests.support.collector_process import Collector, running
from tests.support.collector_view import CollectorView
from tests.support.grpc_calls import refused
from tests.support.played_job import Job
from tests.support.tokens import READER, TEAM, TEAM_READER, WRITER, Player, bearer, write_tokens
from tests.support.virtual_collector import VirtualCollector

GET = "/otel_fr.attribution.v1.Attribution/Get"
ERROR: dict[str, Any] = {
    "exception": {"type": "ValueError", "message": "bad sample 4711", "site": "/job/data.py:17 load"}
}


def ask_grpc(collector: Collector, job: str, attempt: int | None = None, **more: Any) -> attribution_pb2.GetResponse:
    request = attribution_pb2.GetRequest(job_id=job, attempt=attempt)
    return attribution_pb2.GetResponse.FromString(collector.send(GET, request.SerializeToString(), **more))


def fail(collector: CollectorView, attempt: int, rank: int = 1, host: str = "node-b", **ending: Any) -> dict[str, Any]:
    """Play an attempt: one rank on a host ends in the given way, and all others are stopped. Return the answer."""
    with collector.job(3, attempt=attempt) as job:
        for player in job.ranks:
            player.host = f"node-{player.rank}"
        job.ranks[rank].host = host
        job.step()
        job.all_reported()
        job.ranks[rank].exit(**(ending or {"signal": 9}))
        assert collector.time.wait_for(lambda: collector.api(f"attribution?job=job-7&attempt={attempt}")["failure"])
        for player in job.ranks:
            if player.rank != rank:
                player.exit(signal=15)
        return collector.api(f"attribution?job=job-7&attempt={attempt}")


def test_a_death_is_attributed_to_its_rank_and_node(shared: Collector) -> None:
    answer = fail(shared, 0)
    failure = answer["failure"]
    assert (failure["category"], failure["rank"], failure["node"], failure["error"]) == ("rank_dead", 1, "node-b", "")
    assert (answer["job"], answer["attempt"]) == ("job-7", 0)
    assert (answer["recommendation"], answer["exclude_nodes"]) == ("restart", [])
    assert answer["reasons"][-1]["incident_ids"] == [failure["incident_id"]] == [shared.causes()[0]["id"]]
    over_grpc = ask_grpc(shared, "job-7", 0)
    assert over_grpc.recommendation == "restart"
    (one,) = over_grpc.failures
    assert (one.incident_id, one.rank, one.node) == (failure["incident_id"], 1, "node-b")
    assert ask_grpc(shared, "job-7").run_id == answer["run_id"]


def test_a_nodes_third_death_excludes_it_also_over_a_restart_of_the_collector(tmp_path: Path) -> None:
    with VirtualCollector(data=tmp_path) as first:
        assert fail(first, 0, rank=0)["recommendation"] == "restart"
        assert fail(first, 1, rank=1)["recommendation"] == "restart"
    with VirtualCollector(first.time, data=tmp_path) as second:
        assert second.api("attribution?job=job-7")["failure"]["node"] == "node-b"
        answer = fail(second, 2, rank=2)
        assert (answer["recommendation"], answer["exclude_nodes"]) == ("exclude_node", ["node-b"])
        assert answer["reasons"][0]["rule"] == "node_died_often"
        assert len(answer["reasons"][0]["incident_ids"]) == 3
        assert second.api("attribution?job=job-7&attempt=1")["recommendation"] == "restart"


def test_what_ranks_ask_for_counts_until_they_take_it_back(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.step()
        job.all_reported()
        assert collector.api("attribution?job=job-7")["recommendation"] == "restart"
        job.ranks[1].host = "node-b"
        job.ranks[1].ask("exclude_node", "NIC flaps")
        answer = collector.api("attribution?job=job-7")
        assert (answer["recommendation"], answer["exclude_nodes"]) == ("exclude_node", ["node-b"])
        assert answer["reasons"][0]["text"] == "rank 1 on node node-b asked for it: NIC flaps"
        job.ranks[0].ask("stop", "loss is NaN")
        assert collector.api("attribution?job=job-7")["recommendation"] == "stop"
        for rank in job.ranks:
            rank.ask("continue")
        assert collector.api("attribution?job=job-7")["recommendation"] == "restart"
        job.ranks[0].ask("explode")
        assert collector.api("attribution?job=job-7")["recommendation"] == "restart"


def test_questions_that_have_no_answer(shared: Collector) -> None:
    for query, status in (("job=nothing", 404), ("", 400), ("job=", 400), ("job=j&attempt=x", 400)):
        answer = shared.fetch(f"/api/v1/attribution?{query}")
        assert answer.status == status
        assert json.loads(answer.body)["error"]
    assert refused(lambda: ask_grpc(shared, "nothing")) == grpc.StatusCode.NOT_FOUND
    assert refused(lambda: shared.send(GET, b"\x0a\xff")) == grpc.StatusCode.INVALID_ARGUMENT
    assert refused(lambda: shared.send(GET, b"\x0a\x80\x80\x02" + b"x" * 32_768)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    for reason in ("malformed", "too_large"):
        assert shared.metric("otel_fr_collector_requests_rejected_total", signal="attribution", reason=reason)


def test_a_tenant_learns_of_its_own_jobs_only(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    with running(tmp_path / "run", "--tokens", str(tokens)) as guarded:
        for job, token in (("team-a/train", TEAM), ("team-b/train", WRITER)):
            with Job(Player(guarded, token), 1, job_id=job) as played:
                played.all_reported()

        def status(job: str, token: str) -> int:
            return guarded.fetch(f"/api/v1/attribution?job={job}", Authorization=f"Bearer {token}").status

        assert [status("team-a/train", token) for token in (TEAM_READER, READER, TEAM, "nobody-0123456789")] == [
            200, 200, 403, 401,
        ]  # fmt: skip
        assert [status("team-b/train", token) for token in (TEAM_READER, READER)] == [404, 200]

        def code(job: str, token: str) -> grpc.StatusCode:
            return refused(lambda: ask_grpc(guarded, job, metadata=bearer(token)))

        assert ask_grpc(guarded, "team-a/train", metadata=bearer(TEAM)).job_id == "team-a/train"
        assert ask_grpc(guarded, "team-b/train", metadata=bearer(WRITER)).job_id == "team-b/train"
        for job in ("team-b/train", "team-b/nothing", ""):
            assert code(job, TEAM) == grpc.StatusCode.PERMISSION_DENIED
        assert code("team-a/train", READER) == grpc.StatusCode.PERMISSION_DENIED
        assert refused(lambda: ask_grpc(guarded, "team-a/train")) == grpc.StatusCode.UNAUTHENTICATED
