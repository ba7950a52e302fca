"""What the monitor knows of its rank, and the reports and spans made of it."""

from __future__ import annotations

import time
from typing import Any

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.monitor import report_builder as report
from otel_fr.monitor.ending import Exit
from otel_fr.monitor.export import Exporter
from otel_fr.monitor.rank_identity import Who
from otel_fr.monitor.rules import Situation
from otel_fr.monitor.span_builder import SpanBuilder
from otel_fr.monitor.stacks import Stacks
from otel_fr.monitor.tail import Tail, Tracked
from otel_fr.ring import ProcessState, RecordState, RingReader


class Reporter:
    """Follows the ring and tells of it.

    Attributes:
        who: whose ring it is. tail, groups: the ring, followed.
    """

    def __init__(self, reader: RingReader, config: Config) -> None:
        self._reader = reader
        self._config = config
        self._begun_ns = time.monotonic_ns()
        self._number = 0
        self._stacks: Stacks | None = None
        self._stacks_of = 0
        self._had_exception = False
        self._exporter: Exporter | None = None
        self.tail = Tail(reader)
        self.groups = report.Groups(reader)
        self.who = Who.of(reader.meta, config, reader.pid)
        self._resource = self.who.resource()
        self._builder = SpanBuilder(self.who.run_id, self.who.rank, reader.wall_offset_ns)

    def resource(self) -> Resource:
        return self._resource

    def connect(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def refresh(self) -> None:
        """Read again who the rank is: its run id may come later than its ring."""
        who = Who.of(self._reader.meta, self._config, self._reader.pid)
        if who != self.who:
            self.who = who
            self._resource = who.resource()
            self._builder = SpanBuilder(who.run_id, who.rank, self._reader.wall_offset_ns)

    # ---- the ring

    def follow(self, everything: bool = False) -> bool:
        """Read what is new and queue the spans of what has ended; True if a call failed."""
        failed = False
        while True:
            ended = self.tail.poll(everything)
            if ended:
                self._send_spans(ended)
            failed = failed or any(item.record.state is RecordState.FAILED for item in ended)
            if not (everything and self.tail.behind):
                return failed

    def _send_spans(self, items: list[Tracked], rank_ended_ns: int | None = None, clean: bool = False) -> None:
        if self._exporter is None or not self._exporter.wants_spans:
            return
        for start in range(0, len(items), 512):
            part = items[start : start + 512]
            spans = [self._builder.encode(item.record, rank_ended_ns, clean) for item in part]
            self._exporter.put_spans(len(spans), b"".join(spans))

    def close_spans(self, now_ns: int, clean: bool) -> None:
        """The rank has ended: send the spans of what it had in flight."""
        self._send_spans(list(self.tail.in_flight.values()), now_ns, clean)

    def situation(self, now_ns: int) -> Situation:
        """Where the rank stands, for the rules.

        A call of which nobody says whether it has ended counts as in flight until the next of its group. One that was
        posted, and that nobody waits for, holds nobody up.
        """
        tail = self.tail
        moved = max(tail.moved_ns, self._begun_ns)
        uncertain = [item.record for item in tail.uncertain.values() if not item.record.is_posted]
        oldest = min(uncertain, key=lambda record: record.since_ns, default=None)
        for record in (item.record for item in tail.in_flight.values()):
            if oldest is not None and record.issued_ns > oldest.since_ns:
                break
            if not record.is_posted and (oldest is None or record.since_ns < oldest.since_ns):
                oldest = record
        if oldest is None:
            return Situation(now_ns, moved)
        return Situation(now_ns, moved, oldest.record_id, oldest.since_ns)

    def new_exception(self) -> bool:
        """True once, when an uncaught exception is recorded."""
        if self._had_exception or self._reader.exception is None:
            return False
        self._had_exception = True
        return True

    @property
    def clean_so_far(self) -> bool:
        return self._reader.state == ProcessState.CLEAN

    # ---- stacks

    def learn(self, stacks: Stacks) -> None:
        """Remember where the rank is, until it moves."""
        self._stacks = stacks
        self._stacks_of = self.tail.moved_ns

    def _known_stacks(self) -> Stacks | None:
        return self._stacks if self._stacks_of == self.tail.moved_ns else None

    # ---- reports

    def build(self, now_ns: int, stacks: bool = False, **more: Any) -> dict[str, Any]:
        """A rank report. ``stacks``: with the rank's stacks, if they are known; ``more``: further keys."""
        self._number += 1
        groups = self.groups.report(now_ns)
        live = {one["id"] for one in groups if not one["gone"]}
        for id_ in [id_ for id_ in self.tail.uncertain if id_ not in live]:
            del self.tail.uncertain[id_]
        in_flight, in_flight_more = report.in_flight(self.tail.in_flight, self.tail.uncertain, now_ns)
        answer: dict[str, Any] = {
            "v": report.VERSION,
            "rank": self.who.rank,
            "n": self._number,
            "stall_s": self._config.stall_seconds,
            "groups": groups,
            "inflight": in_flight,
            "inflight_more": in_flight_more,
            "failed": [report.call(item, now_ns) for item in self.tail.failed],
            "idle_s": round(max(0, now_ns - max(self.tail.moved_ns, self._begun_ns)) / 1e9, 6),
            "dropped": self.dropped(),
        }
        if self.tail.last is not None:
            answer["last"] = report.call(self.tail.last, now_ns)
        known = self._known_stacks()
        if known is not None:
            answer["python_blocked"] = known.python_blocked
            if known.site:
                answer["site"] = known.site
            if stacks and known.text:
                answer["stack"] = known.text
        answer.update(more)
        return answer

    def send(self, event: str, body: dict[str, Any]) -> None:
        if self._exporter is not None:
            record = report.log_record(event, body, time.time_ns())
            self._exporter.put_report(record, progress=event == names.EVENT_PROGRESS)

    def event(self, event: str, stacks: bool = False, **more: Any) -> dict[str, Any]:
        """Build a report now, send it as ``event``, and return it."""
        body = self.build(time.monotonic_ns(), stacks, **more)
        self.send(event, body)
        return body

    def exception(self) -> dict[str, Any] | None:
        return report.exception_of(self._reader.exception)

    def ending(self, exit_: Exit) -> dict[str, Any]:
        """``exit`` of the rank report."""
        # A goodbye is said before the exit status is settled: sys.exit(3) says goodbye too.
        clean = exit_.code == 0 and exit_.signal == 0 if exit_.known else self.clean_so_far
        return {"code": exit_.code, "signal": exit_.signal, "clean": clean, "known": exit_.known}

    def dropped(self) -> dict[str, int]:
        counters = self._reader.counters
        answer = {
            "spans": 0,
            "reports": 0,
            "records": self._reader.lost + self._reader.torn + self.tail.missed + counters.get("dropped", 0),
            "hook_errors": counters.get("hook_errors", 0),
        }
        if self._exporter is not None:
            answer["spans"] = self._exporter.spans.dropped
            answer["reports"] = self._exporter.reports.dropped
        return answer

    def dump_info(self) -> dict[str, Any]:
        """What a flight-recorder file says beyond the ring."""
        who = self.who
        info: dict[str, Any] = {
            "rank": who.rank,
            "local_rank": who.local_rank,
            "world_size": who.world_size,
            "job_id": who.job_id,
            "attempt": who.attempt,
            "run_id": who.run_id,
            "host": who.host,
            "pid": who.pid,
            "dropped": self.dropped(),
        }
        known = self._known_stacks()
        if known is not None:
            info["python_blocked"] = known.python_blocked
            info.update({key: text for key, text in (("stack", known.text), ("site", known.site)) if text})
        exception = self.exception()
        if exception:
            info["exception"] = exception
        return info
