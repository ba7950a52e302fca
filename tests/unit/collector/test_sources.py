"""What resources say is kept for all ranks of the largest run: reading one again costs more than its brief report."""

from __future__ import annotations

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from otel_fr_collector.jobs import origins
from otel_fr_collector.jobs.bounded import CacheBudget
from otel_fr_collector.jobs.calls import MAX_CACHED
from otel_fr_collector.jobs.origins import Sources
from otel_fr_collector.jobs.run import MAX_RANKS_PER_RUN
from otel_fr_collector.jobs.usage import JOB_MEMORY

from otel_fr import semconv
from otel_fr.match import Place
from otel_fr.otlp_attributes import attributes


def resource(rank: int, run: str = "0123456789abcdef") -> bytes:
    """As on a Slurm cluster in a cloud: half a kilobyte."""
    values: dict[str, str | int | None] = {
        semconv.SERVICE_NAME: "trainer",
        "service.instance.id": f"{run}-rank-{rank}",
        semconv.HOST_NAME: f"ip-10-12-{rank // 2048}-{rank // 8 % 256}.eu-central-1.compute.internal",
        semconv.PROCESS_PID: 4_000 + rank,
        semconv.RANK: rank,
        semconv.LOCAL_RANK: rank % 8,
        semconv.WORLD_SIZE: MAX_RANKS_PER_RUN,
        semconv.RUN_ID: run,
        semconv.JOB_ID: "pretrain-70b-2026-11-22",
        semconv.JOB_ATTEMPT: 0,
        "slurm.job.id": "1234567",
        "slurm.job.account": "research",
        "slurm.node.name": f"node-{rank // 8:05d}",
    }
    return Resource(attributes=attributes(values)).SerializeToString()


def test_the_sources_of_the_largest_run_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_source = origins.read_source

    def counted(given: Resource) -> origins.Source:
        read.append(1)
        return read_source(given)

    monkeypatch.setattr(origins, "read_source", counted)
    # An eighth of such a job, and of what is documented for it.
    ranks = MAX_RANKS_PER_RUN // 8
    sources = Sources(CacheBudget((768 << 20) * MAX_CACHED // JOB_MEMORY // 8))
    resources = [resource(rank) for rank in range(MAX_RANKS_PER_RUN - ranks, MAX_RANKS_PER_RUN)]
    found = [[sources.read(one) for one in resources] for _ in range(2)]
    assert len(read) == ranks
    assert found[0] == found[1]
    assert len({id(one.origin.run) for one in found[0] if one.origin is not None}) == 1, "kept once for all ranks"


def test_runs_and_ranks_are_told_apart() -> None:
    sources = Sources(CacheBudget(MAX_CACHED))
    origins_ = [sources.read(resource(rank, run)).origin for run in ("aaaa", "bbbb") for rank in (0, 9)]
    named = [(one.run.run, one.rank, one.place.local_rank) for one in origins_ if one is not None]
    assert named == [("aaaa", 0, 0), ("aaaa", 9, 1), ("bbbb", 0, 0), ("bbbb", 9, 1)]


def test_where_a_rank_runs_is_read_from_its_resource() -> None:
    pod = {"k8s.pod.name": "llama-0", "k8s.node.name": "gpu-17", "k8s.namespace.name": "train"}
    values = {"torch.rank": 0, "torch.job.id": "j", "host.name": "llama-0", "process.pid": 7, "torch.local_rank": 3}
    given = Resource(attributes=attributes({**values, "torch.gpu": "3", **pod})).SerializeToString()
    origin = Sources(CacheBudget(MAX_CACHED)).read(given).origin
    assert origin is not None
    assert origin.place == Place("llama-0", 7, 3, gpu="3", pod="llama-0", node="gpu-17", namespace="train")


def test_no_more_is_kept_than_the_cache_may_hold() -> None:
    budget = CacheBudget(1 << 20)
    sources = Sources(budget)
    for rank in range(5_000):
        sources.read(resource(rank, f"run-{rank}"))
    assert 0 < budget.used <= 1 << 20
