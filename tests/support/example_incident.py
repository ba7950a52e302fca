"""`make example-incident`: one incident as its readers see it. docs/reference/incident.md has the webhook's text.

This module plays a job of four ranks on two machines into a collector in this process, on its own clock, so that the
text is always the same. It makes the ranks' reports; the collector and the commands make everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS
from otel_fr_collector.outlets.alertmanager import Alertmanager
from otel_fr_collector.outlets.outlet import links_of
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.outlets.webhook import Webhook
from otel_fr_collector.service import Service
from rich.console import Console

from otel_fr import identity, semconv
from otel_fr.console.client import IncidentDetail
from otel_fr.console.incident_view import incident_page
from otel_fr.monitor.telemetry.report_builder import log_record
from otel_fr.rank_report import RankReport, ReportedCall, ReportedGroup
from otel_fr.typed_json import typed
from tests.support.otlp_messages import attribute
from tests.support.paths import DOCS

DOCUMENT = DOCS / "reference" / "incident.md"
BEGIN, END = "<!-- made by `make example-incident` -->", "<!-- end of what it made -->"
WIDTH = 80
"""Columns of the terminal."""
JSON_WIDTH = 144
BEGAN = datetime(2026, 3, 14, 3, 11, 20, tzinfo=timezone.utc).timestamp()
"""When three ranks begin to wait."""
SEEN_AFTER = 47.0
"""Seconds from `BEGAN` to the moment at which the incident is shown."""
WORLD, CULPRIT, STALL = 4, 2, 5.0
JOB, SERVICE = "llama-7b", "train.py"
COLLECTOR, JAEGER = "http://collector:8080", "http://jaeger:16686"
LINKS = Links(COLLECTOR, f"{COLLECTOR}/runbooks/{{category}}", f"{JAEGER}/trace/{{trace_id}}")

_STEP = "/job/train.py:63 train_step"
_WAITING = """Thread MainThread (most recent call last):
  File "/job/train.py", line 88, in <module>
    main()
  File "/job/train.py", line 71, in main
    train_step(batch)
  File "/job/train.py", line 63, in train_step
    dist.all_reduce(loss)
"""
_MISSING = """Thread MainThread (most recent call last):
  File "/job/train.py", line 88, in <module>
    main()
  File "/job/train.py", line 70, in main
    batch = next(batches)
  File "/job/data.py", line 40, in load_shard
    return file.read()
"""


class Play:
    """The job and the collector, on one clock."""

    def __init__(self) -> None:
        self.now = 1_000.0
        metrics = Metrics()
        self.alertmanager = Alertmanager(["http://alertmanager:9093"], metrics, links=LINKS)
        self.changes: list[IncidentChange] = []
        self._service = Service(metrics, Outlets(metrics), lambda: self.now, self.wall, links=LINKS)
        self._service.outlets.publish = self._publish  # type: ignore[method-assign]
        self._ranks = tuple(range(WORLD))
        self._group = identity.group_id("0", self._ranks)
        self._run = identity.run_id(JOB, 0, "nonce")
        self._number = 0
        self._waits_from = self.now + 2.0

    def wall(self) -> float:
        return BEGAN + self.now - self._waits_from

    def run(self) -> Incident:
        """Play until `SEEN_AFTER`, and return the incident at that time."""
        while self.now < self._waits_from + SEEN_AFTER:
            self.now = round(self.now + 0.5, 1)
            age = self.now - self._waits_from
            event = semconv.EVENT_PROGRESS
            if age == STALL:
                event = semconv.EVENT_STALLED
            asyncio.run(self._report(event))
            if age == STALL + 1.0:
                asyncio.run(self._report(semconv.EVENT_DUMP_WRITTEN))
            self._service.step()
        (incident,) = {change.incident.id: change.incident for change in self.changes}.values()
        return incident

    def _publish(self, change: IncidentChange, now: float, *, has_files: bool) -> None:
        self.changes.append(change)
        self.alertmanager.publish(change)

    async def _report(self, event: str) -> None:
        self._number += 1
        request = ExportLogsServiceRequest()
        for rank in self._ranks:
            record = log_record(event, self._of_rank(rank, event), int(self.wall() * 1e9))
            scopes = [ScopeLogs(log_records=[record])]
            request.resource_logs.append(ResourceLogs(resource=self._resource(rank), scope_logs=scopes))
        await self._service.take(LOGS, request.SerializeToString())

    def _of_rank(self, rank: int, event: str) -> RankReport:
        age = self.now - self._waits_from
        joined = age >= 0 and rank != CULPRIT
        has_stacks = age >= STALL
        stack = _MISSING if rank == CULPRIT else _WAITING
        return RankReport(
            rank=rank,
            number=self._number,
            stall_s=STALL,
            groups=(
                ReportedGroup(
                    id=self._group, name="0", description="default_pg", ranks=identity.encode_ranks(self._ranks),
                    backend="nccl", enqueued=812 + joined, completed=812, p2p_enqueued=0, calls_enqueued=812 + joined,
                    calls_ended=812, is_destroyed=False,
                ),
            ),
            in_flight=(self._call(max(0.0, age)),) if joined else (),
            in_flight_more=0,
            failed=(),
            idle_s=max(0.0, age) + (0.3 if rank == CULPRIT else 0.0),
            last=self._call(max(0.0, age)) if joined else None,
            python_blocked=False if has_stacks else None,
            site=("/job/data.py:40 load_shard" if rank == CULPRIT else _STEP) if has_stacks else "",
            stack=stack if event == semconv.EVENT_STALLED else "",
            doing="reading /data/shard-0017.bin on nfs filer:/data" if has_stacks and rank == CULPRIT else "",
            file=f"/var/tmp/otel-fr/{JOB}/rank{rank}" if event == semconv.EVENT_DUMP_WRITTEN else "",
            reason="stall" if event == semconv.EVENT_DUMP_WRITTEN else "",
        )  # fmt: skip

    def _call(self, age: float) -> ReportedCall:
        return ReportedCall(
            group=self._group, stream="collective", sequence=813, op_id=813, record=812, pair_index=0,
            operation="all_reduce", backend="nccl", input_sizes=((1,),), input_dtypes=("Float",), output_sizes=((1,),),
            output_dtypes=("Float",), input_splits=None, output_splits=None, reduce_op="sum", root=None, peer=None,
            tag=None, state="scheduled", timeout_ms=600_000.0, age_s=age, site=_STEP,
        )  # fmt: skip

    def _resource(self, rank: int) -> Resource:
        values = {
            semconv.SERVICE_NAME: SERVICE, semconv.HOST_NAME: f"gpu-{17 + rank // 2}",
            semconv.PROCESS_PID: 4_700 + rank, semconv.RANK: rank, semconv.LOCAL_RANK: rank % 2,
            semconv.GPU: str(rank % 2), semconv.WORLD_SIZE: WORLD, semconv.JOB_ID: JOB, semconv.JOB_ATTEMPT: 0,
            semconv.RUN_ID: self._run,
        }  # fmt: skip
        return Resource(attributes=[attribute(key, value) for key, value in values.items()])


def alert_of(play: Play) -> dict[str, Any]:
    """Return the alert that is posted to Alertmanager."""
    (alert,) = play.alertmanager._firing.values()
    return alert.payload(play.wall())


def webhook_of(play: Play, incident: Incident) -> dict[str, Any]:
    """Return the message to a webhook about the latest change."""
    links = links_of(LINKS, incident, play.wall())
    return Webhook("http://webhook").body(play.changes[-1].kind, incident, links)


def terminal_of(play: Play, incident: Incident) -> str:
    """Return the output of ``otel-fr incidents show``."""
    more = {"links": webhook_of(play, incident)["links"], "consequences": []}
    detail = typed(IncidentDetail, {**incident.data, **more})
    console = Console(file=io.StringIO(), highlight=False, width=WIDTH, color_system=None)
    with _in_utc(), console.capture() as captured:
        console.print(incident_page(detail, play.wall()))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def section() -> str:
    """Return the part of the document from `BEGIN` to `END`."""
    play = Play()
    incident = play.run()
    parts = [
        BEGIN,
        "The webhook; the API's answer has the same `incident`:",
        _fenced("json", _json(webhook_of(play, incident))),
        END,
    ]
    return "\n\n".join(parts)


def _fenced(kind: str, text: str) -> str:
    return f"```{kind}\n{text}\n```"


def _json(value: object, indent: int = 0, room: int = JSON_WIDTH) -> str:
    """Return JSON that puts each value on one line if it fits."""
    short = json.dumps(value)
    if len(short) <= room - indent or not isinstance(value, dict | list):
        return short
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_json(item, indent + 2, room - len(key) - 5)}" for key, item in value.items()]
    else:
        items = [_json(item, indent + 2) for item in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * indent}{right}"


@contextlib.contextmanager
def _in_utc() -> Iterator[None]:
    """Use UTC in the block: the terminal shows local times."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def main(_: Sequence[str]) -> int:
    """Write the section into the document."""
    text = DOCUMENT.read_text()
    before, _begin, rest = text.partition(BEGIN)
    _old, _end, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{section()}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
