"""OTLP requests of metrics, as monitors send them."""

from __future__ import annotations

from otel_fr import identity
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, Record, RecordState, SignatureDef, SiteDef
from tests.support.otlp_messages import rank_resource

SIZE = 1 << 20
"""Bytes of a call."""
QUICK, SLOWEST = 0.004, 0.2
"""Seconds of the calls of `metrics_of`: ten quick calls and one slow call."""
WORLD = 2
_SITE = SiteDef((("train.py", 1, "step"),))


def group(world: int = WORLD) -> GroupDef:
    ranks = tuple(range(world))
    return GroupDef(identity.group_id("0", ranks), "0", "default_pg", ranks, "gloo", 0)


def record(number: int, seconds: float, of: GroupDef, operation: str = "all_reduce", size: int = SIZE) -> Record:
    """Return the record of one completed call on float32."""
    shapes = ((size // 4,),)
    signature = SignatureDef(
        operation, "gloo", shapes, shapes, ("Float",), ("Float",), "sum", None, None, None, None, None, size, size
    )
    issued = number * 10**9
    return Record(
        number, issued, None, issued + round(seconds * 1e9), RecordState.COMPLETED, number, 0, number, 0,
        KIND_COLLECTIVE, 0, 600_000, "MainThread", of, signature, _SITE,
    )  # fmt: skip


def metrics_of(rank: int, job: str = "a", run: str = "r") -> bytes:
    """Return a request with ten quick calls and a slow call."""
    metrics, of = RankMetrics(run, rank, 0), group()
    for number, seconds in enumerate((*[QUICK] * 10, SLOWEST), 1):
        metrics.add(record(number, seconds, of))
    request = metrics.request(rank_resource(rank, WORLD, job, run), ())
    assert request is not None
    return request.SerializeToString()
