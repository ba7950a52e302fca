"""The monitor's loop: waits for the rank's end, the rank's messages, signals and timers, and acts on them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from pathlib import Path
from typing import Any

from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.dumps.write import RECOVERED
from otel_fr.monitor import rules
from otel_fr.monitor.commands import Commands
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.control.node import Node
from otel_fr.monitor.control.stderr import Stderr
from otel_fr.monitor.control.verdict import Verdict
from otel_fr.monitor.files import REASON_REQUEST, REASON_SIGNAL, Files
from otel_fr.monitor.logs import release_pipes
from otel_fr.monitor.nccl.inspector_watch import InspectorWatch, inspector_file
from otel_fr.monitor.nccl.ras_client import RasWatch, ras_address
from otel_fr.monitor.nccl.recorder_watch import RecorderWatch
from otel_fr.monitor.process.ending import RankProcess, was_stopped
from otel_fr.monitor.process.termination import Termination
from otel_fr.monitor.ring.cleanup import remove_beside
from otel_fr.monitor.stack_watch import StackWatch
from otel_fr.monitor.telemetry.export import GATHER_SECONDS, Exporter
from otel_fr.monitor.telemetry.metrics import Schedule
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.monitor.wake import Wake
from otel_fr.rank_report import ReportedExit
from otel_fr.ring import RingReader

_log = logging.getLogger("otel_fr.monitor")

TICK_SECONDS = 0.1
SHORT_TICK_SECONDS = 0.02
"""Length of a tick while the loop waits for an event that does not wake it."""
FAILURE_REPORT_SECONDS = 0.25
"""Shortest time between two reports that failures cause."""
LAST_FLUSH_SECONDS = 1.8
"""Longest time until a rank that ends cleanly gets its answer. The rank waits at most two seconds for it."""
LINGER_SECONDS = 1.5
"""How long the monitor stays after a clean end while the control stream is open. The collector finds a mismatch within
0.3 s of the last spans."""
ERROR_LOG_SECONDS = 60.0
"""Seconds between two log messages about errors of the loop itself."""
EXIT_WAIT_SECONDS = 30.0
"""Longest wait for a process's exit status after it has announced a clean end."""

REASON_FAILED, REASON_OVERDUE, REASON_CRASH, REASON_EXCEPTION = "collective failed", "overdue", "crash", "exception"


class Monitor:
    """Watches one rank until its end.

    Args:
        ring: the ring file that ``reader`` has open.
        process: the rank's process.
        link: the socket to the rank, if there is one.
        exporter, control: not started yet.
        wake: ends the loop's wait.
    """

    def __init__(
        self,
        *,
        reader: RingReader,
        ring: Path,
        process: RankProcess,
        link: Link | None,
        config: Config,
        reporter: Reporter,
        exporter: Exporter,
        control: ControlClient | None,
        wake: Wake,
    ) -> None:
        self._reader = reader
        self._ring = ring
        self._link = link
        self._config = config
        self._reporter = reporter
        self._exporter = exporter
        self._control = control
        self._wake = wake
        self._process = process
        self._termination = Termination(process, config.exit_grace)
        self._episodes = rules.Episodes()
        world_size = reporter.run.identity.world_size or 1
        self._cadence = rules.Cadence(config.stall_seconds, config.peer_timeout, world_size)
        self._ras = RasWatch(ras_address(os.environ) if config.node_rank == 0 else None, process.pid, self.is_first)
        self._files = Files(ring, reader, config, reporter, self._ras, wake.set)
        self._stacks = StackWatch(process, reader, link, config, reporter, self._files)
        self._metrics = Schedule(config.metric_interval, config.rank, time.monotonic())
        self._recorder = RecorderWatch(lambda: reader.meta, reporter.devices, wake.set)
        inspected = inspector_file(os.environ, process.pid)
        self._inspector = InspectorWatch(inspected, lambda call: reporter.run.note_device_call(call))
        self._signalled = False
        self._is_action_due = False
        self._reported_at = float("-inf")
        self._report_at = 0.0
        self._flush_until: float | None = None
        self._stop_at: float | None = None
        self._run_id = reporter.run.identity.run_id
        self._verdict = Verdict(self._new_node(), config, reporter.run.identity.world_size)
        self._commands = Commands(
            control, reporter, link, config, self._files, self._stacks, self._verdict, self._report_in_full
        )
        self._log_error_at = float("-inf")

    def _new_node(self) -> Node:
        identity = self._reporter.run.identity
        size = self._config.local_world_size
        node = Node(self._ring.parent, identity.run_id, identity.rank, size, self._process.pid)
        node.join()
        node.note_earlier(self._reporter.runs(), identity)
        return node

    # ---- called from elsewhere

    def is_first(self, what: str, every: float = 0.0) -> bool:
        """Return True for only one of this machine's monitors; see `Node.is_first`. May be called on any thread."""
        return self._verdict.node.is_first(what, every)

    def dump_signal(self, _number: int, _frame: object) -> None:
        """Signal handler: write the flight-recorder file."""
        self._signalled = True

    # ---- the loop

    def run(self) -> None:
        """Watch until the rank has ended, report its end, and remove its ring."""
        self._exporter.start()
        self._reporter.begin()
        if self._control is not None:
            self._control.start()
        is_over = False
        while not is_over:
            try:
                is_over = self._wait(self._pause()) or self._recording_over()
                if not is_over:
                    self._tick()
            except Exception as error:  # noqa: BLE001 - one bad record must not end the watch; the next tick tries again
                self._log_error("an error while watching the rank; watching continues", error)
                time.sleep(TICK_SECONDS)
        self._finish()

    def _recording_over(self) -> bool:
        """Return True if the process has run for `EXIT_WAIT_SECONDS` since the rank announced a clean end and closed
        its socket. It no longer records then."""
        if not self._reporter.clean_so_far or (self._link is not None and self._link.fd is not None):
            return False
        now = time.monotonic()
        self._stop_at = self._stop_at or now + EXIT_WAIT_SECONDS
        return now >= self._stop_at

    def _pause(self) -> float:
        now = time.monotonic()
        pause = min(TICK_SECONDS, max(0.0, self._report_at - now))
        if self._stacks.is_busy or self._flush_until is not None:
            pause = min(pause, SHORT_TICK_SECONDS)
        return pause

    def _wait(self, seconds: float) -> bool:
        """Wait for an event, for at most ``seconds``. Return True if the rank has ended."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._process.fd is not None:
            poll.register(self._process.fd, select.POLLIN)
        if self._link is not None and self._link.fd is not None:
            poll.register(self._link.fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._wake.fileno() in ready:
            self._wake.clear()
        if self._link is not None and self._link.fd in ready:
            for message in self._link.receive():
                self._handle_message(message)
        return self._process.fd in ready if self._process.fd is not None else not self._process.alive()

    def _tick(self) -> None:  # noqa: C901
        reporter, stall_seconds = self._reporter, self._config.stall_seconds
        if time.monotonic() >= self._report_at:
            reporter.run.groups.refresh()  # before the records are read, so that groups found missing can be settled
        self._recorder.step(time.monotonic())
        failed = reporter.follow()
        now_ns = time.monotonic_ns()
        now = now_ns / 1e9
        situation = reporter.situation(now_ns)
        if failed:
            self._files.write(REASON_FAILED, of_fault=True, patient=True)
            self._report_at = min(self._report_at, self._reported_at + FAILURE_REPORT_SECONDS)
        if reporter.new_thread_exception():
            reporter.send(names.EVENT_EXCEPTION, stacks=True)
        if reporter.new_exception():
            reporter.send(names.EVENT_EXCEPTION, stacks=True, exception=reporter.exception())
            self._files.write(REASON_EXCEPTION)
        if reporter.clean_so_far:
            pass  # a rank that has announced a clean end neither stalls nor idles
        elif self._episodes.new_stall(situation, stall_seconds) is not None:
            self._stacks.ask(names.EVENT_STALLED, now)
        elif reporter.activity.new_overdue(now_ns):
            self._is_action_due = True
            self._stacks.ask(names.EVENT_OVERDUE, now)
        elif self._episodes.new_idle(situation, stall_seconds):
            self._stacks.ask(names.EVENT_IDLE, now)
        self._stacks.step(now)
        self._act_on_hang(now_ns)
        self._files.report()
        self._tell_ras(now)
        self._commands.step(now_ns)
        self._step_verdict(situation)
        if self._signalled:
            self._signalled = False
            self._files.write(REASON_SIGNAL)
        self._files.step(situation)
        interval = self._interval(situation)
        if now >= self._report_at:
            reporter.interval_s = interval
            reporter.running_here = self._verdict.node.running()
            reporter.send(names.EVENT_PROGRESS)
            self._reported_at = now
            self._report_at = now + interval
            if self._control is not None:
                self._control.begin_turn()
        # In the watcher's turn, halve the interval, unless a report was just sent: that one joins the watcher's.
        is_turn = self._control is not None and self._control.take_turn() and now > self._reported_at + GATHER_SECONDS
        self._report_at = min(self._report_at, self._reported_at + (interval / 2 if is_turn else interval))
        self._inspector.step(now)
        if self._metrics.is_due(now):
            reporter.run.send_metrics()
        self._step_last_flush(now)

    def _interval(self, situation: rules.Situation) -> float:
        if self._control is not None:
            self._cadence.most = self._control.report_interval
            self._reporter.commands_lost = self._control.lost
        return self._cadence.interval(situation)

    def _report_in_full(self) -> None:
        self._reporter.forget_told()
        self._report_at = 0.0

    def _step_verdict(self, situation: rules.Situation) -> None:
        if self._reporter.run.identity.run_id != self._run_id:
            self._run_id = self._reporter.run.identity.run_id
            self._verdict.follow(self._new_node(), self._reporter.run.identity.world_size)
            self._files.last = ""  # it is of the run before
        is_stalled = rules.stalled_call(situation, self._config.stall_seconds) is not None
        since = situation.oldest_since_ns if is_stalled and not self._reporter.clean_so_far else None
        self._verdict.step(since, situation.now_ns, self._files.last)

    # ---- limits

    def _act_on_hang(self, now_ns: int) -> None:
        """Do what `Config.on_hang` says, once the stacks of an overdue rank are known."""
        if self._is_action_due and not self._stacks.is_busy:
            self._is_action_due = False
            if self._config.on_hang != "alert":
                self._files.write(REASON_OVERDUE, of_fault=True)
            if self._config.on_hang == "kill":
                self._termination.want(now_ns / 1e9)
        self._termination.step(
            now_ns / 1e9,
            is_overdue=self._reporter.activity.is_overdue(now_ns) and not self._reporter.clean_so_far,
            is_writing=self._files.is_busy,
            announce=self._announce_end,
        )

    def _announce_end(self) -> None:
        """Report why the rank will be ended."""
        self._reporter.on_hang = "kill"
        self._reporter.activity.keep(time.monotonic_ns())
        self._reporter.send(names.EVENT_OVERDUE, stacks=True)
        self._exporter.hurry()

    # ---- messages and commands

    def _handle_message(self, message: dict[str, Any]) -> None:
        command = message.get("cmd")
        if "stacks" in message:
            self._stacks.answered(message)
        elif command == "dump":
            self._files.write(str(message.get("reason") or REASON_REQUEST)[:200])
        elif command == "workload_control":
            self._reporter.send_control(str(message.get("action")), str(message.get("description"))[:1000])
            self._exporter.hurry()
        elif command == "bye" and self._flush_until is None:
            self._reporter.run.groups.refresh()
            self._reporter.follow(everything=True)
            self._recorder.step(time.monotonic(), at_once=True)
            self._reporter.forget_told()
            self._reporter.send(names.EVENT_PROGRESS)
            self._inspector.step(time.monotonic(), at_once=True)
            self._reporter.run.send_metrics()
            self._exporter.hurry()
            self._flush_until = time.monotonic() + LAST_FLUSH_SECONDS

    def _step_last_flush(self, now: float) -> None:
        if self._flush_until is None or self._link is None:
            return
        self._exporter.hurry()
        is_sent = not self._recorder.is_busy and not self._exporter.pending(patient=False)
        if is_sent or now >= self._flush_until:
            self._link.send({"ok": "bye"})
            self._flush_until = None

    def _tell_ras(self, now: float) -> None:
        """Report the answer of NCCL's RAS, if there is one."""
        found = self._ras.take(now, self._reporter.run.identity.run_id)
        if found is not None:
            self._reporter.send(names.EVENT_NCCL_RAS, ras=found)

    # ---- the end

    def _finish(self) -> None:
        # First, because older kernels show the exit status only until the rank's parent has waited for it.
        seen = self._process.how_ended()
        if self._control is not None:
            self._control.note_end()
        error = Stderr()
        release_pipes()
        now_ns = time.monotonic_ns()
        clean, is_kept = False, False
        try:
            exit_ = self._files.exit = self._reporter.reported_exit(seen)
            clean = is_kept = exit_.is_clean
            self._tell_ras(now_ns / 1e9)
            self._report_exit(exit_, now_ns)
            if not clean:
                is_kept = self._files.write_last(REASON_CRASH, exit_)
            elif self._files.shows_fault:
                self._files.write_last(RECOVERED)
            self._verdict.follow_others()  # after the file is written, because others may wait for it
            if not clean:
                message = self._reader.meta.get("exit_message")
                is_stopped = was_stopped(exit_.signal, self._reporter.exception(), message)
                self._verdict.node.note_failure(self._files.last, stopped=is_stopped)
        except Exception as problem:  # noqa: BLE001 - queued data must still be sent
            self._log_error("could not report the end of the rank in full", problem)
        try:
            self._verdict.last_words(error, self._commands.note_incidents)
            if clean:
                self._linger()
            self._verdict.leave()
        except Exception as problem:  # noqa: BLE001 - the same
            self._log_error("could not print the verdict", problem)
        if self._control is not None:
            self._control.stop()
        self._exporter.finish(now_ns / 1e9, clean)
        remove_beside(self._reader.meta)
        if is_kept:
            with contextlib.suppress(OSError):
                self._ring.unlink()
        else:
            _log.error("keeping the ring file of this rank: %s", self._ring)

    def _report_exit(self, exit_: ReportedExit, now_ns: int) -> None:
        reporter, file = self._reporter, self._files.last
        reporter.refresh()
        reporter.run.groups.refresh()
        self._recorder.close()
        reporter.follow(everything=True)
        reporter.close_spans(now_ns, exit_.is_clean)
        self._inspector.step(now_ns / 1e9, at_once=True)
        reporter.run.send_metrics()
        reporter.new_thread_exception()
        self._stacks.note_end(exit_.is_clean)
        reporter.send(names.EVENT_EXITED, stacks=True, exit=exit_, exception=reporter.exception(), file=file)
        self._exporter.hurry()

    def _linger(self) -> None:
        """Wait for commands. The collector may find a mismatch in the last spans of ranks that ended cleanly.

        This delays nothing: the rank has ended and its pipes are closed.
        """
        deadline = time.monotonic() + LINGER_SECONDS
        while self._control is not None and self._control.listening and time.monotonic() < deadline:
            select.select([self._wake], [], [], TICK_SECONDS)
            self._wake.clear()
            self._commands.step(time.monotonic_ns())
            self._files.report()
        while self._files.is_busy and time.monotonic() < deadline + LINGER_SECONDS:
            time.sleep(SHORT_TICK_SECONDS)
        self._files.report()

    def _log_error(self, what: str, error: Exception) -> None:
        """Log an error of the loop, at most once a minute."""
        now = time.monotonic()
        if now >= self._log_error_at:
            self._log_error_at = now + ERROR_LOG_SECONDS
            _log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)
