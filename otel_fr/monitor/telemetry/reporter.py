"""What the monitor knows of its rank, and the reports and spans made from it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.dumps.exceptions import reported_exception, reported_thread_exceptions
from otel_fr.dumps.nccl_inspector import DeviceCall
from otel_fr.fault_tolerance.peers import EXIT_CODE
from otel_fr.identity import encode_ranks
from otel_fr.monitor.nccl.device_calls import DeviceCalls, Tracked
from otel_fr.monitor.process import error_file
from otel_fr.monitor.process.ending import Exit
from otel_fr.monitor.process.link_watch import LinkWatch
from otel_fr.monitor.process.processor_wait import ProcessorWait
from otel_fr.monitor.process.stacks import Stacks
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.ring.activity_watch import ActivityWatch
from otel_fr.monitor.ring.call_lines import call_lines
from otel_fr.monitor.ring.tail import Tail
from otel_fr.monitor.rules import Situation
from otel_fr.monitor.telemetry import report_builder
from otel_fr.monitor.telemetry.brief_reports import STILL_SHARE, BriefReports
from otel_fr.monitor.telemetry.call_ranges import reported_range
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.history import History
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.monitor.telemetry.span_sender import SpanSender
from otel_fr.monitor.witness import Witness
from otel_fr.out_of_memory import OutOfMemory
from otel_fr.rank_report import DropCounts, RankReport, ReportedException, ReportedExit, ReportedRas
from otel_fr.ring import ProcessState, RecordState, RingReader


class Reporter:
    """Follows the ring, and builds and sends spans and reports.

    Attributes:
        identity, witness: of the rank. tail, groups, activity: what has been read of the ring.
        devices: what PyTorch's recorder has shown. processor: how long the rank waits for one.
        on_hang: what was done because a limit had passed; "": nothing.
        running_here: as `Node.running` last found them. commands_lost: by `ControlClient.lost`.
        thread_exceptions: that threads did not catch, as last reported.
        interval_s: until the next progress report, at most.
        is_to_exit: the rank was asked to end, because a peer has failed.
    """

    def __init__(self, reader: RingReader, config: Config, is_first: bool = True) -> None:
        """``is_first``: False: the rank had a monitor before, which has sent what had ended before now."""
        self._reader = reader
        self._config = config
        self._started_ns = time.monotonic_ns()
        self._sent_until_ns = 0 if is_first else self._started_ns
        # Higher than any of a monitor before, which sends a few reports a second, so that the collector takes it.
        self._number = 0 if is_first else time.time_ns() // 1_000_000
        self._stacks: Stacks | None = None
        self._stacks_of = 0
        # The rank looked before its monitor was started, which takes seconds on a busy machine.
        self._memory = OutOfMemory(reader.pid, first=reader.meta.get("memory") if is_first else None)
        self._had_exception = False
        self._error_file: ReportedException | None = None
        self.thread_exceptions: tuple[ReportedException, ...] = ()
        self._exporter: Exporter | None = None
        self.devices = DeviceCalls()
        self.activity = ActivityWatch(reader, config)
        self.processor = ProcessorWait(reader.pid)
        self.on_hang = ""
        self.running_here: list[int] = []
        self.commands_lost = 0
        self.interval_s = rank_report.DEFAULT_INTERVAL
        self.is_to_exit = False
        self._enter(RankIdentity.all_of(reader.meta, config, reader.pid)[-1])
        self._follow_run()
        world = self.identity.world_size or 1
        self._links = LinkWatch(reader.pid, self.identity.local_rank, world - config.local_world_size)
        self._brief = BriefReports(world)

    def connect(self, exporter: Exporter) -> None:
        """Send through ``exporter``; without one nothing is sent."""
        self._exporter = self._spans.exporter = exporter
        self._metrics = self._new_metrics()

    def begin(self) -> None:
        """Read what the rank has recorded before now, which may be of several runs, and tell that it is there."""
        oldest, *later = self._runs()
        if later and not self._sent_until_ns:
            self._enter(oldest)
            self._follow_run()
            self.follow()
        else:
            self.follow()
            self.send_started()

    def refresh(self) -> None:
        """Read the rank's identity again: the process may have become a rank of another run, and of several."""
        before = self.identity.session
        *earlier, present = self._runs()
        for identity in (*[one for one in earlier if one.session > before], present):
            if identity.session != self.identity.session:
                self._leave_run(identity)
                self._enter(identity)
                self._follow_run()
            elif identity != self.identity:
                self._enter(identity)
        if present.session != before:
            self.send_started()

    def _runs(self) -> list[RankIdentity]:
        return RankIdentity.all_of(self._reader.meta, self._config, self._reader.pid)

    def _enter(self, identity: RankIdentity) -> None:
        """Report as this rank."""
        self.identity = identity
        self._resource = identity.resource()
        self.witness = Witness(identity.rank, identity.world_size or 1)
        self._spans = SpanSender(identity, self._reader, self._config.sampling_ratio, self._exporter)

    def _follow_run(self) -> None:
        """Follow the calls of the run of `identity`: those before them are not its own."""
        self.tail = Tail(self._reader, self.identity.first_record, self.devices)
        self._history = History(self._reader, self.tail, self.devices)
        self.groups = report_builder.GroupTracker(self._reader, self.identity.session, self.tail.reached)
        self._metrics = self._new_metrics()

    def send_started(self) -> None:
        """Tell that this process is a rank of its run, and if that is a quorum of torchft's, which."""
        self.send(names.EVENT_STARTED)
        if self.identity.quorum is not None:
            self._put(report_builder.quorum_record(self.identity))

    def _new_metrics(self) -> RankMetrics:
        wants = self._exporter is not None and self._exporter.wants_spans
        offset = self._reader.wall_offset_ns
        return RankMetrics(self.identity.run_id, self.identity.rank, offset, wants_exemplars=wants)

    @property
    def _sampled(self) -> float | None:
        """Share of the traces whose spans are sent; None: all are."""
        ratio = self._config.sampling_ratio or 0.0
        return None if ratio >= 1 else ratio

    def _leave_run(self, following: RankIdentity) -> None:
        """Report the end of this run for the rank. ``following``: what it became next, as far as that is known."""
        behind = following.session == self.identity.session + 1  # else the calls up to there are also of other runs
        while behind:
            self._take_ended(self.tail.poll(everything=True, until=following.first_record))
            behind = self.tail.is_behind(following.first_record)
        self._take_ended(self.devices.release())
        self.close_spans(time.monotonic_ns(), clean=True)
        self.send_metrics()
        self.groups.end()
        if following.run_id != self.identity.run_id:
            self.send(names.EVENT_EXITED, exit=ReportedExit(code=0, signal=0, is_clean=True, is_known=False))
            self._number = 0  # a collector takes a run whose reports have high numbers for older than itself
        self._started_ns = time.monotonic_ns()
        self._stacks = None
        self._brief.forget()

    # ---- the ring

    def follow(self, everything: bool = False) -> bool:
        """Read new records and queue the spans of calls that have ended; True if a call failed."""
        failed = False
        leaving = self.groups.leaving()
        while True:
            # A run begins before its calls: all records up to here are of the run that is found next, or of one before.
            head = self._reader.head
            self.refresh()
            self._follow_activity()  # what the calls up to here were made in has begun
            ended = self.tail.poll(everything, head)
            if ended:
                self._take_ended(ended)
            failed = failed or any(item.record.state is RecordState.FAILED for item in ended)
            if not (everything and self.tail.is_behind()):
                break
        if leaving and not self.tail.is_behind():
            self.tail.forget(self.groups.settle(leaving))
        return failed

    def _take_ended(self, items: list[Tracked]) -> None:
        """Count the calls, and send their spans; apart from those that a monitor before has seen to their end."""
        if self._sent_until_ns:
            items = [one for one in items if (one.record.ended_ns or one.record.issued_ns) >= self._sent_until_ns]
        sent = self._spans.select(items)
        self._count(items, sent)
        self._spans.send(sent)

    def _count(self, items: list[Tracked], sent: list[Tracked]) -> None:
        """``sent``: those whose spans are sent."""
        if self._exporter is not None and self._exporter.wants_metrics:
            add = self._metrics.add
            numbers = None if sent is items else {item.record.record_id for item in sent}
            for item in items:
                add(item.record, item.device, has_span=numbers is None or item.record.record_id in numbers)

    def note_incident(self, trace: bytes) -> None:
        """An incident has opened: send what the sample leaves out of it. ``trace``: of its collective, or empty."""
        self._spans.note_incident(trace, self.tail.in_flight)

    def note_device_call(self, call: DeviceCall) -> None:
        """NCCL Inspector has measured a call."""
        if self._exporter is not None and self._exporter.wants_metrics:
            self._metrics.add_inspected(call)

    def send_metrics(self) -> None:
        """Send the numbers as of now."""
        exporter = self._exporter
        if exporter is None or not exporter.wants_metrics:
            return
        request = self._metrics.request(self._resource, (item.record for item in self.tail.in_flight.values()))
        if request is not None:
            exporter.put_metrics(request, self._resource)

    def close_spans(self, now_ns: int, clean: bool) -> None:
        """The rank has ended: send the spans of its calls in flight, and of what it was in."""
        self._spans.send(list(self.tail.in_flight.values()), now_ns, clean)
        self._spans.send_activity(self.activity.current, now_ns, clean)

    def situation(self, now_ns: int) -> Situation:
        """What `otel_fr.monitor.rules` decides on.

        A call whose backend does not show when calls end counts as in flight until the next call of its group. A posted
        call blocks nothing, because no thread waits for it; one that destroys a group waits for no other rank.
        """
        tail = self.tail
        self.processor.step(now_ns, self.moved_ns)
        uncertain = [item.record for item in tail.uncertain.values() if not item.record.is_posted]
        oldest = min(uncertain, key=lambda record: record.since_ns, default=None)
        for record in (item.record for item in self.in_flight(now_ns).values() if not item.record.destroys):
            if oldest is not None and record.issued_ns > oldest.since_ns:
                break
            if not record.is_posted and (oldest is None or record.since_ns < oldest.since_ns):
                oldest = record
        self.witness.note(oldest)
        if oldest is None:
            return Situation(now_ns, self.moved_ns)
        return Situation(now_ns, self.moved_ns, oldest.record_id, oldest.since_ns, self.witness.is_one)

    def in_flight(self, now_ns: int) -> Mapping[int, Tracked]:
        """By record id, the calls in flight, oldest first.

        Whether a device's calls still wait is known only while PyTorch's recorder was read a moment ago: before the
        next answer they count as posted.

        Args:
            now_ns: monotonic.
        """
        found = self.tail.in_flight
        if not self.devices.is_stale(now_ns):
            return found
        return {id_: item if item.device is None else item.as_posted() for id_, item in found.items()}

    @property
    def moved_ns(self) -> int:
        """When a call was last enqueued or ended; before the first one: when the monitor started."""
        return max(self.tail.moved_ns, self._started_ns)

    def new_exception(self) -> bool:
        """True once, when the main thread's uncaught exception is recorded."""
        if self._had_exception or self._reader.exception is None:
            return False
        self._had_exception = True
        return True

    def new_thread_exception(self) -> bool:
        """True when another uncaught exception of a thread is recorded."""
        found = reported_thread_exceptions(self._reader)
        if found == self.thread_exceptions:
            return False
        self.thread_exceptions = found
        return True

    @property
    def clean_so_far(self) -> bool:
        return self._reader.state == ProcessState.CLEAN

    def _follow_activity(self) -> None:
        """Read what the program tells of its progress, and queue the spans of sections and steps that have ended."""
        ended = self.activity.poll(time.monotonic_ns())
        self._spans.note_activity(self.activity.current, ended)
        ended = [item for item in ended if (item.ended_ns or 0) >= self._sent_until_ns]
        for item in ended:
            self._metrics.add_step(item)
        self._spans.send_activity(ended)

    def remember_stacks(self, stacks: Stacks) -> None:
        """Report these stacks until the rank moves on."""
        self._stacks = stacks
        self._stacks_of = self.tail.moved_ns

    def known_stacks(self) -> Stacks | None:
        """The stacks that were last remembered; None: there are none, or the rank has moved on.

        An interpreter that ends, or has reported the exception that ends it, need not answer: it is not blocked.
        """
        known = self._stacks if self._stacks_of == self.tail.moved_ns else None
        if known is None or not known.python_blocked:
            return known
        is_ending = self._reader.meta.get("exiting") is True or self._reader.exception is not None
        return replace(known, python_blocked=False) if is_ending else known

    # ---- reports

    def build(self, now_ns: int, *, stacks: bool = False) -> RankReport:
        """A rank report of what has been read so far.

        Args:
            now_ns: monotonic. stacks: with the rank's stacks, if they are known.
        """
        self._number += 1
        meta = self._reader.meta
        is_over = meta.get("exiting") is True or self.clean_so_far
        fingerprints = self.tail.fingerprints.report(now_ns, is_over=is_over)
        groups = self.groups.report(now_ns, self.devices.open_by_group(), fingerprints)
        live = {group.id for group in groups if not group.is_destroyed}
        for id_ in [id_ for id_ in self.tail.uncertain if id_ not in live]:
            del self.tail.uncertain[id_]
        self.tail.forget(self.tail.reached.keys() - {group.id for group in groups})
        devices, last = self.devices, self.tail.last
        in_flight, in_flight_more = report_builder.in_flight(
            self.in_flight(now_ns),
            {id_: item for id_, item in self.tail.uncertain.items() if not devices.is_awaited(item.record.record_id)},
            devices.undecided(),
            now_ns,
        )
        known = self.known_stacks()
        idle = report_builder.seconds_between(self.moved_ns, now_ns)
        in_full, is_still = stacks or known is not None, idle >= STILL_SHARE * self._config.stall_seconds
        step = self.activity.step
        return RankReport(
            rank=self.identity.rank,
            number=self._number,
            stall_s=self._config.stall_seconds,
            groups=groups,
            in_flight=in_flight,
            in_flight_more=in_flight_more,
            failed=tuple([report_builder.reported_call(item, now_ns) for item in self.tail.failed]),
            idle_s=idle,
            starved_s=self.processor.seconds,
            dropped=self.dropped(),
            last=None if last is None else report_builder.reported_call(devices.current(last), now_ns),
            lines=call_lines(self._reader) if stacks and (known is not None or self.witness.is_one) else (),
            **({} if known is None else known.reported(with_text=stacks)),
            **self._links.reported(known),
            is_exiting=meta.get("exiting") is True,
            exit_message=_text(meta.get("exit_message")),
            exit_site=_text(meta.get("exit_site")),
            activity=self.activity.reported(now_ns),
            step=None if step is None else step.step,
            step_s=None if step is None else report_builder.seconds_between(step.began_ns, now_ns),
            on_hang=self.on_hang,
            records_creations=meta.get("creations") is True,
            peer_timeout=self._config.peer_timeout,
            interval_s=max(rank_report.DEFAULT_INTERVAL, self.interval_s),
            running_here=encode_ranks(self.running_here) if len(self.running_here) > 1 else "",
            sampled=self._sampled,
            **(self._history.reported(self.identity.rank, in_full=in_full) if in_full or is_still else {}),
        )

    def send(
        self,
        event: str,
        *,
        stacks: bool = False,
        exit: ReportedExit | None = None,
        exception: ReportedException | None = None,
        file: str = "",
        reason: str = "",
        error: str = "",
        ras: ReportedRas | None = None,
    ) -> None:
        """Build a report now, and send it as ``event``; that the rank is stalled, its group's witnesses say.

        Args:
            stacks: with the rank's stacks, if they are known, and the exceptions of its threads.
            exit, exception, file, reason, error, ras: as in `otel_fr.rank_report.RankReport`.
        """
        if event == names.EVENT_STALLED and not self.witness.is_one:
            return
        self._memory.look(time.monotonic())
        self._links.step(time.monotonic())
        report = self.build(time.monotonic_ns(), stacks=stacks)
        if file and not report.decisions:  # the collector has asked for it, of a rank that continues
            report = structs.replace(report, **self._history.reported(self.identity.rank, in_full=True))
        report = structs.replace(
            report,
            exit=exit,
            exception=exception,
            thread_exceptions=self.thread_exceptions if stacks else (),
            file=file,
            reason=reason,
            error=error,
            ras=ras,
        )
        is_progress = event == names.EVENT_PROGRESS
        if is_progress or (event == names.EVENT_DUMP_WRITTEN and not self.witness.is_one):
            report = self._brief.form(report, time.monotonic(), is_witness=self.witness.is_one)
        self._put(report_builder.log_record(event, report, time.time_ns()), progress=is_progress)

    def send_calls(self, group: str, first: int, last: int) -> None:
        """Report the collectives of a group from one sequence number to another, as far as they are still known."""
        now_ns = time.monotonic_ns()
        fetched = reported_range(self._reader, group, first, last, now_ns)
        report = structs.replace(self.build(now_ns), fetched=fetched)
        self._put(report_builder.log_record(names.EVENT_CALLS, report, time.time_ns()))

    def forget_told(self) -> None:
        """The next progress report is a full one (`otel_fr.monitor.telemetry.brief_reports`)."""
        self._brief.forget()

    def _put(self, record: LogRecord, progress: bool = False) -> None:
        if self._exporter is not None:
            self._exporter.put_report(record, self._resource, progress=progress)

    def send_control(self, action: str, description: str) -> None:
        """Send what the program asks to be done before the next start (docs/reference/telemetry.md)."""
        self._put(report_builder.control_record(action, description))

    def exception(self) -> ReportedException | None:
        """The uncaught exception that the ring holds, or of a rank that has ended, that torchelastic has noted."""
        return reported_exception(self._reader) or self._error_file

    def reported_exit(self, exit_: Exit) -> ReportedExit:
        """How the rank ended."""
        is_clean = exit_.is_clean(said=self.clean_so_far, exit_message=self._reader.meta.get("exit_message"))
        if exit_.code and self._reader.exception is None:
            self._error_file = error_file.read(os.environ.get(error_file.VARIABLE, ""))
        reason = self._memory.reason(time.monotonic()) if exit_.signal == signal.SIGKILL else ""
        ended_for = self.is_to_exit and exit_.code == EXIT_CODE, exit_.is_for_nodes(self._config.nodes_changed)
        return ReportedExit(exit_.code, exit_.signal, is_clean, exit_.known, reason, *ended_for)

    def dropped(self) -> DropCounts:
        """What was lost so far."""
        counters, exporter = self._reader.counters, self._exporter
        spans, reports = (0, 0) if exporter is None else (exporter.spans.dropped, exporter.reports.dropped)
        records = self._reader.lost + self._reader.torn + self.tail.missed + counters.get("dropped", 0)
        return DropCounts(spans, reports, records, counters.get("hook_errors", 0), self.commands_lost)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
