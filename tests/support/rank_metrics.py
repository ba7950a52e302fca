"""Requests of metrics as monitors send them."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import identity, semconv
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.otlp_attributes import attributes
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, Record, RecordState, SignatureDef, SiteDef

SIZE = 1 << 20
"""Bytes of a call."""
QUICK, SLOWEST = 0.004, 0.2
"""Seconds of the calls of `metrics_of`: ten quick ones, and one of the other kind."""
WORLD = 2
_SITE = SiteDef((("train.py", 1, "step"),))


def resource(rank: int, job: str = "a", run: str = "r", world: int = WORLD) -> Resource:
    """Of one rank."""
    values = {
        semconv.SERVICE_NAME: "trainer",
        semconv.HOST_NAME: "node-0",
        semconv.PROCESS_PID: 100 + rank,
        semconv.RANK: rank,
        semconv.WORLD_SIZE: world,
        semconv.JOB_ID: job,
        semconv.JOB_ATTEMPT: 0,
        semconv.RUN_ID: run,
    }
    return Resource(attributes=attributes(values))


def group(world: int = WORLD) -> GroupDef:
    ranks = tuple(range(world))
    return GroupDef(identity.group_id("0", ranks), "0", "default_pg", ranks, "gloo", 0)


def record(number: int, seconds: float, of: GroupDef, operation: str = "all_reduce", size: int = SIZE) -> Record:
    """One call of float32 that has completed."""
    shapes = ((size // 4,),)
    signature = SignatureDef(
        operation, "gloo", shapes, shapes, ("Float",), ("Float",), "sum", None, None, None, None, None, size, size
    )
    issued = number * 10**9
    return Record(
        number, issued, None, issued + round(seconds * 1e9), RecordState.COMPLETED, number, 0, number, 0,
        KIND_COLLECTIVE, 0, 600_000, "MainThread", of, signature, _SITE,
    )  # fmt: skip


def metrics_of(
    rank: int, durations: Iterable[float] = (*[QUICK] * 10, SLOWEST), job: str = "a", run: str = "r"
) -> bytes:
    """A request with calls of so many seconds."""
    metrics, of = RankMetrics(run, rank, 0), group()
    for number, seconds in enumerate(durations, 1):
        metrics.add(record(number, seconds, of))
    request = metrics.request(resource(rank, job, run), ())
    assert request is not None
    return request.SerializeToString()
