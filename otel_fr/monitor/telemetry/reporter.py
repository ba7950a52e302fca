"""Builds and sends reports and spans from what the monitor knows about its rank."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from msgspec import structs
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.dumps.exceptions import reported_exception, reported_thread_exceptions
from otel_fr.fault_tolerance.peers import EXIT_CODE
from otel_fr.identity import encode_ranks
from otel_fr.monitor.nccl.device_calls import DeviceCalls
from otel_fr.monitor.process import error_file
from otel_fr.monitor.process.ending import Exit
from otel_fr.monitor.process.link_watch import LinkWatch
from otel_fr.monitor.process.processor_wait import ProcessorWait
from otel_fr.monitor.process.stacks import Stacks
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.ring.activity_watch import ActivityWatch
from otel_fr.monitor.ring.call_lines import call_lines
from otel_fr.monitor.rules import Situation, seconds_between
from otel_fr.monitor.telemetry import report_builder
from otel_fr.monitor.telemetry.brief_reports import STILL_SHARE, BriefReports
from otel_fr.monitor.telemetry.call_ranges import reported_range
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.rank_run import RankRun
from otel_fr.out_of_memory import OutOfMemory
from otel_fr.rank_report import DropCounts, RankReport, ReportedException, ReportedExit, ReportedRas
from otel_fr.ring import ProcessState, RingReader


class Reporter:
    """Follows the ring, and builds and sends spans and reports.

    Args:
        is_first: False if an earlier monitor of this rank has sent everything that ended before now.

    Attributes:
        run: the rank's present run, as far as the ring was read.
        activity: what the program reports about its progress.
        devices: what PyTorch's recorder has shown.
        processor: how long the rank has waited for a processor.
        on_hang: what was done because a limit had passed; "": nothing.
        running_here: last result of `Node.running`.
        commands_lost: last value of `ControlClient.lost`.
        thread_exceptions: uncaught exceptions of threads, as last reported.
        interval_s: most seconds until the next progress report.
        is_to_exit: True if the rank was asked to end, because a peer has failed.
    """

    def __init__(self, reader: RingReader, config: Config, exporter: Exporter, is_first: bool = True) -> None:
        self._reader = reader
        self._config = config
        self._exporter = exporter
        self._sent_until_ns = 0 if is_first else time.monotonic_ns()
        # Higher than any number of an earlier monitor, which sends few reports a second: the collector ignores lower
        # numbers.
        self._number = 0 if is_first else time.time_ns() // 1_000_000
        self._stacks: Stacks | None = None
        self._stacks_of = 0
        # The rank takes the first look, because the start of its monitor takes seconds on a busy machine.
        self._memory = OutOfMemory(reader.pid, first=reader.meta.get("memory") if is_first else None)
        self._had_exception = False
        self._error_file: ReportedException | None = None
        self.thread_exceptions: tuple[ReportedException, ...] = ()
        self.devices = DeviceCalls()
        self.activity = ActivityWatch(reader, config)
        self.processor = ProcessorWait(reader.pid)
        self.on_hang = ""
        self.running_here: list[int] = []
        self.commands_lost = 0
        self.interval_s = rank_report.DEFAULT_INTERVAL
        self.is_to_exit = False
        identity = self.runs()[-1]
        self._enter(identity)
        self._links = LinkWatch(reader.pid, identity.local_rank)
        self._brief = BriefReports(identity.world_size or 1)

    # ---- the ring

    def begin(self) -> None:
        """Read what the rank has recorded so far, perhaps in several runs, and report that it has started."""
        oldest, *later = self.runs()
        if is_behind := bool(later) and not self._sent_until_ns:
            self._enter(oldest)
        self.follow()
        if not is_behind:
            self.send_started()

    def follow(self, everything: bool = False) -> bool:
        """Read new records, and queue the spans of calls that have ended. Return True if a call failed."""
        failed = False
        leaving = self.run.groups.leaving()
        while True:
            # A run begins before its calls: these records belong to the run that `refresh` finds, or to an earlier run.
            head = self._reader.head
            self.refresh()
            # The sections and steps in which these calls were made have begun.
            ended = self.activity.poll(time.monotonic_ns())
            self.run.note_activity(self.activity.current, ended)
            failed = self.run.read(everything, head) or failed
            if not (everything and self.run.tail.is_behind()):
                break
        if leaving and not self.run.tail.is_behind():
            self.run.tail.forget(self.run.groups.settle(leaving))
        return failed

    def refresh(self) -> None:
        """Read the rank's identity again, because the process may have entered one or more other runs."""
        before = self.run.identity.session
        *earlier, present = self.runs()
        for identity in (*[one for one in earlier if one.session > before], present):
            if identity.session != self.run.identity.session:
                self._leave_run(identity)
                self._enter(identity)
            elif identity != self.run.identity:
                self.run.describe(identity)
        if present.session != before:
            self.send_started()

    def runs(self) -> list[RankIdentity]:
        """Return the process's identity in each of its runs, the present run last (`RankIdentity.all_of`)."""
        return RankIdentity.all_of(self._reader.meta, self._config, self._reader.pid)

    def _enter(self, identity: RankIdentity) -> None:
        """Follow the calls of a run. Earlier calls belong to other runs."""
        self.run = RankRun(identity, self._reader, self._config, self.devices, self._exporter, self._sent_until_ns)

    def _leave_run(self, following: RankIdentity) -> None:
        """Report that the rank has left its run. ``following``: the process's next run, as far as known."""
        self.run.read_last(following)
        self.close_spans(time.monotonic_ns(), clean=True)
        self.run.send_metrics()
        self.run.groups.end()
        if following.run_id != self.run.identity.run_id:
            self.send(names.EVENT_EXITED, exit=ReportedExit(code=0, signal=0, is_clean=True, is_known=False))
            self._number = 0  # if a run's reports begin with high numbers, a collector takes it for older than itself
        self._stacks = None
        self._brief.forget()

    def close_spans(self, now_ns: int, clean: bool) -> None:
        """Send the spans of calls in flight, open sections and the current step, because the rank has left the run."""
        self.run.close_spans(self.activity.current, now_ns, clean)

    # ---- what the rank does

    def situation(self, now_ns: int) -> Situation:
        """Return the rank's situation, for the decisions of `otel_fr.monitor.rules`."""
        run = self.run
        self.processor.step(now_ns, run.moved_ns)
        oldest = run.oldest(now_ns)
        run.witness.note(oldest)
        if oldest is None:
            return Situation(now_ns, run.moved_ns)
        return Situation(now_ns, run.moved_ns, oldest.record_id, oldest.since_ns, run.witness.is_one)

    def new_exception(self) -> bool:
        """Return True once, when the main thread's uncaught exception is recorded."""
        if self._had_exception or self._reader.exception is None:
            return False
        self._had_exception = True
        return True

    def new_thread_exception(self) -> bool:
        """Return True if another thread's uncaught exception was recorded since the last call."""
        found = reported_thread_exceptions(self._reader)
        if found == self.thread_exceptions:
            return False
        self.thread_exceptions = found
        return True

    @property
    def clean_so_far(self) -> bool:
        return self._reader.state == ProcessState.CLEAN

    def remember_stacks(self, stacks: Stacks) -> None:
        """Report these stacks until the rank moves on."""
        self._stacks = stacks
        self._stacks_of = self.run.tail.moved_ns

    def known_stacks(self) -> Stacks | None:
        """Return the stacks that were last remembered. None: there are none, or the rank has moved on.

        An interpreter that ends, or has reported the exception that ends it, need not answer. It does not count as
        blocked.
        """
        known = self._stacks if self._stacks_of == self.run.tail.moved_ns else None
        if known is None or not known.python_blocked:
            return known
        is_ending = self._reader.is_exiting or self._reader.exception is not None
        return replace(known, python_blocked=False) if is_ending else known

    # ---- reports

    def send_started(self) -> None:
        """Report that this process is a rank of its run, and the quorum, if the run is a quorum of torchft."""
        self.send(names.EVENT_STARTED)
        if self.run.identity.quorum is not None:
            self._put(report_builder.quorum_record(self.run.identity))

    def build(self, now_ns: int, *, stacks: bool = False) -> RankReport:
        """Return a rank report of what was read so far.

        Args:
            now_ns: monotonic.
            stacks: include the rank's stacks, if they are known.
        """
        self._number += 1
        run, tail, meta = self.run, self.run.tail, self._reader.meta
        is_over = self._reader.is_exiting or self.clean_so_far
        fingerprints = tail.fingerprints.report(now_ns, is_over=is_over)
        groups = run.groups.report(now_ns, self.devices.open_by_group(), fingerprints)
        live = {group.id for group in groups if not group.is_destroyed}
        for id_ in [id_ for id_ in tail.uncertain if id_ not in live]:
            del tail.uncertain[id_]
        tail.forget(tail.reached.keys() - {group.id for group in groups})
        devices, last = self.devices, tail.last
        in_flight, in_flight_more = report_builder.in_flight(
            run.in_flight(now_ns),
            {id_: item for id_, item in tail.uncertain.items() if not devices.is_awaited(item.record.record_id)},
            devices.undecided(),
            now_ns,
        )
        known = self.known_stacks()
        idle = seconds_between(run.moved_ns, now_ns)
        in_full, is_still = stacks or known is not None, idle >= STILL_SHARE * self._config.stall_seconds
        step = self.activity.step
        return RankReport(
            rank=run.identity.rank,
            number=self._number,
            stall_s=self._config.stall_seconds,
            groups=groups,
            in_flight=in_flight,
            in_flight_more=in_flight_more,
            failed=tuple([report_builder.reported_call(item, now_ns) for item in tail.failed]),
            idle_s=idle,
            starved_s=self.processor.seconds,
            dropped=self.dropped(),
            last=None if last is None else report_builder.reported_call(devices.current(last), now_ns),
            lines=call_lines(self._reader) if stacks and (known is not None or run.witness.is_one) else (),
            **({} if known is None else known.reported(with_text=stacks)),
            **self._links.reported(known),
            is_exiting=self._reader.is_exiting,
            exit_message=_text(meta.get("exit_message")),
            exit_site=_text(meta.get("exit_site")),
            activity=self.activity.reported(now_ns),
            step=None if step is None else step.step,
            step_s=None if step is None else seconds_between(step.began_ns, now_ns),
            on_hang=self.on_hang,
            records_creations=meta.get("creations") is True,
            peer_timeout=self._config.peer_timeout,
            interval_s=max(rank_report.DEFAULT_INTERVAL, self.interval_s),
            running_here=encode_ranks(self.running_here) if len(self.running_here) > 1 else "",
            sampled=self._sampled,
            **(run.history.reported(run.identity.rank, in_full=in_full) if in_full or is_still else {}),
        )

    @property
    def _sampled(self) -> float | None:
        """Share of the traces whose spans are sent; None: all."""
        ratio = self._config.sampling_ratio or 0.0
        return None if ratio >= 1 else ratio

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
        """Build a report now, and send it as ``event``. Only witnesses report that they are stalled.

        Args:
            stacks: include the rank's stacks, if they are known, and the exceptions of its threads.
            exit, exception, file, reason, error, ras: see `otel_fr.rank_report.RankReport`.
        """
        run = self.run
        if event == names.EVENT_STALLED and not run.witness.is_one:
            return
        self._memory.look(time.monotonic())
        self._links.step(time.monotonic(), (run.identity.world_size or 1) - self._config.local_world_size)
        report = self.build(time.monotonic_ns(), stacks=stacks)
        if file and not report.decisions:  # the collector has requested the file of a rank that continues
            report = structs.replace(report, **run.history.reported(run.identity.rank, in_full=True))
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
        if is_progress or (event == names.EVENT_DUMP_WRITTEN and not run.witness.is_one):
            report = self._brief.form(report, time.monotonic(), is_witness=run.witness.is_one)
        self._put(report_builder.log_record(event, report, time.time_ns()), progress=is_progress)

    def send_calls(self, group: str, first: int, last: int) -> None:
        """Report the collectives of a group from one sequence number to another, as far as they are still known."""
        now_ns = time.monotonic_ns()
        fetched = reported_range(self._reader, group, first, last, now_ns)
        report = structs.replace(self.build(now_ns), fetched=fetched)
        self._put(report_builder.log_record(names.EVENT_CALLS, report, time.time_ns()))

    def forget_told(self) -> None:
        """Make the next progress report a full one (`otel_fr.monitor.telemetry.brief_reports`)."""
        self._brief.forget()

    def _put(self, record: LogRecord, progress: bool = False) -> None:
        self._exporter.put_report(record, self.run.resource, progress=progress)

    def send_control(self, action: str, description: str) -> None:
        """Send the action that the program requests before the next start (docs/reference/telemetry.md)."""
        self._put(report_builder.control_record(action, description))

    def exception(self) -> ReportedException | None:
        """Return the uncaught exception from the ring or, after the rank's end, from torchelastic's error file."""
        return reported_exception(self._reader) or self._error_file

    def reported_exit(self, exit_: Exit) -> ReportedExit:
        """Return how the rank ended."""
        is_clean = exit_.is_clean(said=self.clean_so_far, exit_message=self._reader.meta.get("exit_message"))
        if exit_.code and self._reader.exception is None:
            self._error_file = error_file.read(os.environ.get(error_file.VARIABLE, ""))
        reason = self._memory.reason(time.monotonic()) if exit_.signal == signal.SIGKILL else ""
        ended_for = self.is_to_exit and exit_.code == EXIT_CODE, exit_.is_for_nodes(self._config.nodes_changed)
        return ReportedExit(exit_.code, exit_.signal, is_clean, exit_.known, reason, *ended_for)

    def dropped(self) -> DropCounts:
        """Return what was lost so far."""
        counters, exporter = self._reader.counters, self._exporter
        spans, reports = exporter.spans.dropped, exporter.reports.dropped
        records = self._reader.lost + self._reader.torn + self.run.tail.missed + counters["dropped"]
        errors = counters["hook_errors"] - self.run.identity.errors_before
        return DropCounts(spans, reports, records, errors, self.commands_lost)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
