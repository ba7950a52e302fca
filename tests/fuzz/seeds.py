"""Valid inputs, from which cases are made: a played job's requests, and files from support and fixtures."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics

from otel_fr import semconv
from otel_fr.control.v1.control_pb2 import WatchRequest
from otel_fr.ring import GroupDef, RecordState
from tests.support.grpc_calls import LOGS, METRICS, TRACES
from tests.support.otlp_messages import spans
from tests.support.paths import DUMPS
from tests.support.played_job import Job
from tests.support.rings import OPERATIONS, RankRing, float_signature, signature

JOB = "fuzz/job"
"""Name of the played job. Cases replace it by names of the same length."""
STACK = 'Thread 0x1 (most recent call first):\n  File "/job/data.py", line 17 in load\n'


@dataclass
class Seeds:
    """Valid inputs.

    Attributes:
        requests: by signal. reports: (event, JSON). watches: control requests. dumps: by kind.
        pairs: files of two ranks of one job.
    """

    requests: dict[str, list[bytes]] = field(default_factory=dict)
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    resource: bytes = b""
    watches: list[bytes] = field(default_factory=list)
    dumps: dict[str, bytes] = field(default_factory=dict)
    rings: list[bytes] = field(default_factory=list)
    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)


class _Recorder:
    """Keeps requests, in place of a collector."""

    def __init__(self) -> None:
        self.requests: dict[str, list[bytes]] = {TRACES: [], LOGS: [], METRICS: []}

    def send(self, method: str, data: bytes, **_: object) -> bytes:
        self.requests[method].append(data)
        return b""


def make_seeds(folder: Path) -> Seeds:
    """Return the seeds. ``folder``: for the files of imaginary ranks."""
    seeds = Seeds()
    _add_requests(seeds)
    _add_files(seeds, folder)
    return seeds


ACTIVITY = [
    {"kind": "section", "name": "loading", "age_s": 3.0, "limit_s": 2.0, "overdue": True},
    {"kind": "heartbeat", "age_s": 70.0, "limit_s": 60.0, "overdue": True},
]


def _add_requests(seeds: Seeds) -> None:
    recorder = _Recorder()
    job = Job(recorder, 4, JOB)
    pair = job.group("1", [0, 1], "dp")
    job.step()
    job.step(pair, "broadcast", root=0)
    calls = [job.ranks[rank].issue(job.world, "all_gather", sizes=[[3, 4], [5]]) for rank in (0, 1)]
    sent = job.ranks[0].issue(job.world, "send", kind="p2p", peer=1, tag=3)
    job.ranks[0].complete(sent)
    job.ranks[1].fail(calls[1])
    raised = {"type": "ValueError", "message": "bad", "stack": STACK, "site": "/job/data.py:17 load"}
    for event, more in (
        (semconv.EVENT_PROGRESS, {}),
        (semconv.EVENT_IDLE, {"stack": STACK, "python_blocked": True}),
        (semconv.EVENT_EXCEPTION, {"exception": raised}),
        (semconv.EVENT_OVERDUE, {"activity": ACTIVITY, "step": 7, "step_s": 1.5, "on_hang": "kill"}),
        (semconv.EVENT_DUMP_WRITTEN, {"file": "/dumps/rank_0"}),
        (semconv.EVENT_EXITED, {"exit": {"code": 1, "signal": 0, "clean": False, "known": True}}),
    ):
        for rank in job.ranks[:2]:
            rank.send_report(event, **more)
            seeds.reports.append((event, json.loads(json.dumps(rank.report(**more)))))
    brief = job.ranks[0].report(inflight=[], failed=[], brief=True, creations=True, step=3, step_s=0.5, here="0-3")
    del brief["last"]
    for group in brief["groups"]:
        del group["name"], group["desc"], group["ranks"], group["backend"]
    seeds.reports.append((semconv.EVENT_PROGRESS, brief))
    point = NumberDataPoint(as_double=1.0, time_unix_nano=1)
    metric = Metric(name="requests", gauge=Gauge(data_points=[point]))
    metrics = ResourceMetrics(resource=job.ranks[0].resource(), scope_metrics=[ScopeMetrics(metrics=[metric])])
    recorder.requests[METRICS].append(ExportMetricsServiceRequest(resource_metrics=[metrics]).SerializeToString())
    recorder.requests[TRACES].append(spans(1) + spans(2, service="other"))
    seeds.requests = recorder.requests
    seeds.resource = job.ranks[0].resource().SerializeToString()
    seeds.watches = [
        WatchRequest(job_id=job.id, run_id=job.run, rank=1, host_name="node", pid=7).SerializeToString(),
        WatchRequest(job_id=job.id, attempt=3).SerializeToString(),
    ]


def _tell(ring: RankRing) -> None:
    """Write heartbeats, sections and a step into the ring's activity section."""
    activity = ring.writer.activity
    body = (1, 1, activity.reference("loading"), 11, 12, 1000, 0, 2000, 0, 1, -1)
    activity.open(body)
    ended = (2, *body[1:])
    activity.end(activity.open(ended), ended, 5000)
    activity.set_step((3, 2, 0, 11, 12, 1000, 0, 0, 0, 3, 7))
    activity.heartbeat(4000)


def _add_files(seeds: Seeds, folder: Path) -> None:
    for rank in range(2):
        ring = RankRing(folder / f"ring{rank}", rank, 2, capacity=40)
        ring.group("1", [0, 1], "tp")
        for operation in OPERATIONS:
            ring.call(signature(operation, peer=1 - rank, tag=0, root=0))
        ring.call(float_signature(), group="1", state=RecordState.IN_FLIGHT if rank else RecordState.COMPLETED)
        _tell(ring)
        ring.writer.add_group(GroupDef("aa", "2", "odd \u2028", (0, 5), "nccl", 3))
        seeds.rings.append(Path(ring.writer.path).read_bytes())
        ended: dict[str, Any] = {
            "exit_code": 1,
            "exception": {"type": "E", "message": "m", "stack": STACK, "site": "a:1 f"},
        }
        ring.write(folder, **(ended if rank else {}))
        ring.write(folder, "json", stack=STACK)
        seeds.dumps[f"own {rank}"] = (folder / f"trace_{rank}").read_bytes()
        seeds.dumps[f"own json {rank}"] = (folder / f"trace_{rank}.json").read_bytes()
    torch = (DUMPS / "nvrx_lock_gil_2nd" / "_dump_1").read_bytes()
    plain = pickle.loads(torch)
    seeds.dumps["torch"] = torch
    seeds.dumps["torch json"] = json.dumps(plain).encode()
    seeds.dumps["torchcomms"] = (DUMPS / "tc01_torchcomms_json_hang" / "rank_0.json").read_bytes()
    seeds.dumps["gzip"] = gzip.compress(torch)
    seeds.pairs.append((seeds.dumps["own 0"], seeds.dumps["own 1"]))
    for job in sorted(DUMPS.iterdir()):  # of several versions of PyTorch
        files = sorted(job.iterdir())[:2] if job.is_dir() else []
        seeds.dumps.update({f"{job.name} {file.name}": file.read_bytes() for file in files})
        if len(files) == 2:
            seeds.pairs.append((files[0].read_bytes(), files[1].read_bytes()))
    for protocol in (0, 4, 5):
        seeds.dumps[f"protocol {protocol}"] = pickle.dumps(plain, protocol)
