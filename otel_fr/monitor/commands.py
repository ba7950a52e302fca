"""Carries out the collector's commands to this rank, such as files, stacks, calls and failed peers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.control.v1.control_pb2 import Command, Dump, FetchCalls, Incident, PeerFailed
from otel_fr.identity import encode_ranks
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.control.pace import Pace
from otel_fr.monitor.control.peers import ENDED, Notice, PeerWatch
from otel_fr.monitor.control.verdict import Verdict
from otel_fr.monitor.files import REASON_REQUEST, Files
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.stack_watch import StackWatch
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.presentation import ranks_text, verb
from otel_fr.ring import POSTED, Record
from otel_fr.torch_recorder import ends_are_seen

_log = logging.getLogger("otel_fr.monitor")

FETCH_SECONDS, FETCH_SHARE = 3.0, 0.01
"""CPU seconds that searches for calls may take at once, and their largest share of a processor in the long run. One
search takes up to a second. A collector needs three or four to find a difference. Further requests get no answer."""
MAX_FETCHES = 64
"""Most requests for calls that wait. If there are more, the oldest are dropped."""
_MAX_REASON = 500
"""Most characters of a reason or a URL that are logged."""


class Commands:
    """Handles the commands for the rank's present run.

    Args:
        link: the socket to the rank, if there is one.
        report: called to send a full report now.
    """

    def __init__(
        self,
        control: ControlClient | None,
        reporter: Reporter,
        link: Link | None,
        config: Config,
        files: Files,
        stacks: StackWatch,
        verdict: Verdict,
        report: Callable[[], None],
    ) -> None:
        self._control = control
        self._reporter = reporter
        self._link = link
        self._config = config
        self._files = files
        self._stacks = stacks
        self._verdict = verdict
        self._report = report
        self._run_id = reporter.run.identity.run_id
        self._peers = PeerWatch(config.stall_seconds)
        self._incidents: deque[str] = deque(maxlen=256)
        self._fetches: deque[FetchCalls] = deque(maxlen=MAX_FETCHES)
        self._fetching = Pace(FETCH_SHARE, FETCH_SECONDS, time.monotonic())
        self._has_refused = False

    def step(self, now_ns: int) -> None:
        """Carry out new commands, and actions that are due. ``now_ns``: monotonic."""
        self._follow_run()
        while (command := self._next(self._run_id)) is not None:  # ranks have other numbers in each run
            self._take(command)
        if self._fetches:
            self._answer(self._fetches.popleft())
        if self._config.on_peer_failure != "ignore":
            self._end_calls(now_ns)

    def note_incidents(self) -> bool:
        """Note new incidents after the rank has ended. Other commands are not carried out.

        Return False if no more commands can come.
        """
        while (command := self._next()) is not None:
            if command.HasField("dump") and command.dump.incident_id:
                self._note_opened(command.dump)
            elif command.HasField("incident"):
                self._note_incident(command.incident)
        return self._control is not None and self._control.listening

    def _next(self, run: str | None = None) -> Command | None:
        return None if self._control is None else self._control.inbox.take(run)

    def _note_opened(self, dump: Dump) -> None:
        self._note_incident(Incident(incident_id=dump.incident_id, summary=dump.reason, page_url=dump.page_url))

    def _note_incident(self, incident: Incident) -> None:
        summary, page = incident.summary[:_MAX_REASON], incident.page_url[:_MAX_REASON]
        self._verdict.note_incident(incident.incident_id, summary, page, is_over=incident.is_over)

    def _follow_run(self) -> None:
        run_id = self._reporter.run.identity.run_id
        if run_id == self._run_id:
            return
        self._run_id = run_id
        self._peers.forget()
        self._fetches.clear()
        if self._control is not None:
            self._control.reconnect()

    def _take(self, command: Command) -> None:
        if command.HasField("dump"):
            self._take_dump(command.dump)
        elif command.HasField("incident"):
            self._note_incident(command.incident)
        elif command.HasField("inspect"):
            if self._reporter.run.identity.rank in command.inspect.ranks:
                self._stacks.named_as_culprit()
        elif command.HasField("take_stacks"):
            self._stacks.ask(names.EVENT_STACKS, time.monotonic())
        elif command.HasField("report"):
            self._report()
        elif command.HasField("fetch_calls"):
            self._fetches.append(command.fetch_calls)
        elif command.HasField("peer_failed"):
            self._take_failure(command.peer_failed)
        elif command.HasField("peer_recovered"):
            recovered = self._peers.recovered(command.peer_recovered.ranks)
            if recovered:
                has = verb(recovered, "has", "have")
                self._say("the collector says that %s %s not failed", ranks_text(recovered), has)
                if self._link is not None:
                    self._link.send({"cmd": "peer_recovered", "ranks": encode_ranks(recovered)})

    def _take_dump(self, dump: Dump) -> None:
        if dump.incident_id and dump.incident_id not in self._incidents:
            self._incidents.append(dump.incident_id)
            self._note_opened(dump)
            self._reporter.run.note_incident(dump.trace_id)
        self._files.write(dump.reason[:200] or REASON_REQUEST, of_fault=True)

    def _answer(self, wanted: FetchCalls) -> None:
        """Report requested calls. Each step answers only one request, because a search may take a second."""
        if self._fetching.wait(time.monotonic()) > 0:
            if not self._has_refused:
                _log.info("the collector asks for more calls than this rank answers")
            self._has_refused = True
            return
        begun = time.thread_time()
        try:
            self._reporter.send_calls(wanted.group_id, wanted.first, wanted.last)
        finally:
            self._fetching.spend(time.thread_time() - begun, time.monotonic())

    def _take_failure(self, failed: PeerFailed) -> None:
        run, here = self._reporter.run, self._verdict.node.running()
        notice = self._peers.told(failed, run.identity.rank, run.groups.live, here)
        if notice is not None:
            has = f"{verb(notice.ranks, 'has', 'have')} {'ended' if notice.failed.kind == ENDED else 'failed'}"
            self._say("the collector says that %s %s: %s", ranks_text(notice.ranks), has, notice.failed.reason)
            self._tell(notice, "peer_failed", names.EVENT_PEER_FAILED)

    def _say(self, text: str, *values: object) -> None:
        """Log news that all monitors of the run receive. Only the monitor of local rank 0 logs it."""
        if not self._reporter.run.identity.local_rank:
            self._verdict.log(text, *values)

    def _end_calls(self, now_ns: int) -> None:
        """Make the rank end the calls that wait for a failed peer."""
        run = self._reporter.run
        moved_ns = run.moved_ns
        notice = self._peers.due(
            [_dated(item, moved_ns) for item in run.in_flight(now_ns).values() if not item.record.destroys],
            (item.record for item in run.tail.uncertain.values()),
            run.groups.live,
            moved_ns=moved_ns,
            now_ns=now_ns,
        )
        if notice is not None:
            self._reporter.is_to_exit = True
            self._tell(notice, "end_calls", names.EVENT_CALLS_ENDED)

    def _tell(self, notice: Notice, command: str, event: str) -> None:
        if self._link is not None:
            self._link.send(notice.message(command))
        self._reporter.send(event, reason=f"{notice.failed.kind}: {notice.failed.reason}")


def _dated(item: Tracked, moved_ns: int) -> Record:
    """Return the record of a call. If it is unknown since when the call of a device waits, it counts as waiting since
    the rank last moved: before that, the device may not have begun it."""
    record = item.record
    is_unseen = record.waited_ns is None and ends_are_seen(record.signature.backend)
    return record._replace(waited_ns=max(moved_ns, POSTED + 1)) if is_unseen else record
