"""Connects the collector's parts, from requests to published incidents. Everything runs in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from otel_fr.control.v1 import control_pb2
from otel_fr.waits.blocks import StragglerLimits
from otel_fr_collector import timeline
from otel_fr_collector.attribution.answer import Attribution
from otel_fr_collector.collective_metrics import CollectiveMetrics
from otel_fr_collector.control import Control
from otel_fr_collector.disagreements import Disagreements
from otel_fr_collector.faults import Faults
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.forward.incident_traces import IncidentTraces
from otel_fr_collector.gauges import JobGauges
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.judge import STEP_SECONDS, Judge
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.incidents.resolution import Resolution, has_gone_on, has_grown, lacking, why_over
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.ingest import CheckJob, Ingest
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.usage import JOB_MEMORY, MAX_KEPT
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.peer_failures import MAX_REASON, PeerFailures
from otel_fr_collector.slow_looks import SlowLooks
from otel_fr_collector.storage.persistence import Persistence
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.store import Store, Written

_log = logging.getLogger(__name__)

TICK = 0.1
BREAK = 0.02
"""Seconds between two steps while more is due than one step does. Half of the time is left to requests."""
CLEAN_UP_INTERVAL = 1.0
"""Seconds between two clean-ups of old runs and incidents."""


@dataclass
class _Unpublished:
    """Changes to publish once ``written`` is done, or at ``deadline`` (monotonic). Without ``written``, at once."""

    changes: list[IncidentChange]
    written: Written | None
    deadline: float

    def is_due(self, now: float) -> bool:
        return self.written is None or self.written.is_done or now >= self.deadline


class Service:
    """Takes in requests, has runs judged, and publishes the changes of incidents.

    Args:
        forwarder: sends telemetry to backends. None: there are none.
        store: keeps incidents across a restart. None: they end with the process.
        retention: how long resolved incidents stay in memory. The store has its own.
        links: links to show with incidents.
        tenant_of: returns the tenant of a job, by the job's name.
        straggler_limits: when a rank counts as a straggler.
        alert_after: as for `IncidentBook`.
        job_memory: bytes that runs and caches of their telemetry may take.
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(  # noqa: PLR0913
        self,
        metrics: Metrics,
        outlets: Outlets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        forwarder: Forwarder | None = None,
        store: Store | None = None,
        retention: Retention | None = None,
        links: Links | None = None,
        tenant_of: Callable[[str], str] = tenant_of,
        straggler_limits: StragglerLimits | None = None,
        alert_after: float = 0.0,
        job_memory: int = JOB_MEMORY,
    ) -> None:
        self.metrics = metrics
        kept = job_memory * MAX_KEPT // JOB_MEMORY
        self.runs = Runs(tenant_of=tenant_of, straggler_limits=straggler_limits, most=kept)
        book = self.book = IncidentBook(wall, tenant_of, alert_after)
        self.store = store
        self.outlets = outlets
        self.links = links or Links()
        self.control = Control(tenant_of)
        self.attribution = Attribution(self.runs, self.book, store, clock)
        self.ingest = Ingest(self.runs, metrics, clock, wall, cached=job_memory - kept)
        self._retention = retention or Retention()
        self._forwarder = forwarder
        self.clock = clock
        self.wall = wall
        self._faults = Faults(metrics)
        self._last_tick = self._cleaned_at = clock()
        self._persistence: Persistence | None = None
        self._grace = ReturnGrace(clock(), self._may_judge, self.runs.before)
        self.judge = Judge(self.runs, self.book, self._grace, metrics, self._take_changes, clock, wall)
        self._peer_failures = PeerFailures(self.runs, self.book, self.control, self._grace, clock)
        self._disagreements = Disagreements(self.control, metrics)
        self._slow_looks = SlowLooks(self.runs, self.control)
        self._over_since: dict[RunId, float] = {}
        """The `Run.last_seen` of each run for which `on_over` was last called."""
        self._to_resolve: deque[RunId] = deque()
        """Runs whose incidents are still to be checked in this clean-up."""
        self._to_publish: deque[_Unpublished] = deque()
        self.on_dropped: Callable[[Run], None] = lambda _: None
        self.on_over: Callable[[Run], None] = lambda _: None
        """Called when no rank of a run reports any more, long before the run is dropped."""
        self._traces = None if forwarder is None else IncidentTraces(self.runs, forwarder, store, clock)
        metrics.registry.register(JobGauges(self.runs, book.open_data, book.alerting_data, self.control, clock))
        metrics.registry.register(CollectiveMetrics(self.runs))
        if store is not None:
            self._persistence = Persistence(
                store, self.runs, self.book, self._grace, self._resume, self._forget, clock, wall, self.judge.is_busy
            )
            self._persistence.restore()

    async def begin(self) -> None:
        """Continue with the verdicts that were due when the collector ended. Call this before `take`."""
        if self._persistence is not None:
            await self._persistence.replay(self.ingest)

    async def take(self, signal: str, data: bytes, check_job: CheckJob | None = None) -> bytes:
        """Take one OTLP request, and queue it for the backends. Return the response's bytes.

        Args:
            check_job: called with the job of each resource before anything is taken or forwarded.

        Raises:
            MalformedError: the request is not an OTLP message of this signal. It is not forwarded.
            TooManyError: the request has too many parts. It is not forwarded.
        """
        response = await self.ingest.take(signal, data, check_job)
        if self._forwarder is not None:
            await self._forwarder.take(signal, data)
        return response

    def ask_stacks(self, run: Run) -> int:
        """Ask for the stacks of all ranks of the run. `Ingest.stack_requests` collects the answers.

        Returns:
            how many ranks have a monitor that was asked.
        """
        self.ingest.stack_requests.ask(run.id, self.wall())
        return self.control.take_stacks(run.id)

    def problems(self) -> list[str]:
        """Sentences about what does not work now. Everybody may read them, so file names are only in the log."""
        found = []
        if self.store is not None and self.store.problem:
            found.append("incidents wait in memory: the store cannot be written")
        if self._forwarder is not None and not self._forwarder.is_up:
            found.append("requests for the backends wait in memory: the disk cannot be written")
        if self.outlets.file is not None and self.outlets.file.problem:
            found.append("incidents are missing from the --incidents file: it cannot be written")
        if self.judge.has_failed(self.clock()):
            found.append("some jobs could not be judged for minutes; the log names them")
        if self.runs.crowded:
            found.append("some ranks are not judged: their jobs are larger than the limits; the log names them")
        return found

    async def run(self) -> None:
        """Step every `TICK` seconds until cancelled, or sooner if more is due than one step does."""
        if self.store is not None:
            loop = asyncio.get_running_loop()
            self.store.on_written = lambda: _call_in(loop, self._publish_written)
        is_done = True
        while True:
            await asyncio.sleep(TICK if is_done else BREAK)
            is_done = self.step()

    async def finish(self, seconds: float) -> None:
        """Judge and publish for the last time, for about ``seconds`` at most."""
        await self.judge.finish(seconds)
        while not self._cleaned(self.clock()):
            await asyncio.sleep(0)
        while self._to_publish:
            self._publish_written()
            await asyncio.sleep(BREAK)
        if self._traces is not None:
            with self._faults.caught("forward", "could not send the traces of incidents"):
                self._traces.finish()
        self.outlets.step(self.clock(), self.book, final=True)

    def step(self) -> bool:
        """Do what is due now.

        Returns:
            False if more is due. A step is short, so that other tasks can use the event loop.
        """
        now = self.clock()
        gap = now - self._last_tick
        self.runs.attention.step(gap, now)
        self._last_tick = now
        self._publish_written()
        is_done = self.judge.step(now)
        with self._faults.caught("control", "could not ask ranks that disagree for their calls"):
            for run in self.runs.by_id.values():
                if run.differences:
                    self._disagreements.step(run, now)
        with self._faults.caught("control", "could not notify monitors of failed peers"):
            self._peer_failures.step(now)
        with self._faults.caught("control", "could not look for stragglers"):
            self._slow_looks.step(now)
        if now - self._cleaned_at >= CLEAN_UP_INTERVAL:
            is_done = self._cleaned(now) and is_done
        self.outlets.step(now, self.book)
        return is_done

    def _cleaned(self, now: float) -> bool:
        """Clean up. Return False if there is more to do."""
        try:
            if not self._clean_up(now):
                return False
        except Exception:  # noqa: BLE001  it is tried again after a second; ending here would lose waiting data
            self.metrics.errors.labels("housekeeping").inc()
            _log.exception("housekeeping failed; trying again")
        self._cleaned_at = now
        return True

    def _clean_up(self, now: float) -> bool:
        """Clean up. Return False if incidents that are over remain, and this must be called again."""
        if self._persistence is not None:
            for data in self._persistence.share(now):
                self.outlets.event_stream.repeat(data)
        self._grace.expire(now, self.runs.by_id)
        self.runs.note_crowded(now)
        for known in self.runs.by_id.values():
            known.keep_sample(now)
            if known.to_ask:
                self.control.report(known.id, known.to_ask)
                known.to_ask.clear()
            is_quiet = now - known.last_seen > timeline.OVER_AFTER and known.last_seen != self._over_since.get(known.id)
            if is_quiet and not known.is_live(now):
                self._over_since[known.id] = known.last_seen
                self.on_over(known)
        if self._traces is not None:
            self._traces.step()
        for run in self.runs.drop_ended(now):
            if not self.book.open_of(run.id):
                self.book.drop_run(run.id)
            self.control.forget(run.id)
            self.on_dropped(run)
        self._over_since = {known: at for known, at in self._over_since.items() if known in self.runs.by_id}
        self.judge.forget_dropped()
        if not self._resolve_ended_runs(now):
            return False
        self.book.drop_old(self.wall() - self._retention.seconds)
        if self._persistence is not None:
            self._persistence.step()
        return True

    def _resolve_ended_runs(self, now: float) -> bool:
        """Resolve the incidents of runs that are gone, replaced by a newer attempt, or silent for long.

        Return False if some are left after `STEP_SECONDS`. The next call begins with these.
        """
        end = time.perf_counter() + STEP_SECONDS
        of_job: dict[str, list[Run]] = {}
        for run in self.runs.by_id.values():
            of_job.setdefault(run.id.job, []).append(run)
        waiting = self._to_resolve = self._to_resolve or deque(self.book.runs())
        while waiting:
            if time.perf_counter() > end:
                return False
            run_id = waiting.popleft()
            known = self.runs.by_id.get(run_id)
            if known is None:
                self._take_changes(self.book.resolve_run(run_id, now, Resolution.UNHEARD), now)
                self.book.drop_run(run_id)
                continue
            accused = self.book.accused(run_id)
            later = [run for run in of_job[run_id.job] if run.first_seen > known.first_seen]
            lacks = lacking(known, accused, later)
            if lacks is not None and lacks.is_live(now):
                continue
            newer = (run for run in of_job[run_id.job] if run.id.attempt > run_id.attempt)
            # A job that is started anew under its name counts its attempts anew.
            is_over = any(run.last_seen >= known.last_seen for run in newer) and not known.is_live(now)
            has_gone = lacks is None and has_gone_on(known, accused, later)
            if is_over or has_gone or has_grown(known, accused, later):
                known.is_replaced = True
            if (why := why_over(known, accused, now, is_judged=not self.judge.is_busy(run_id))) is not None:
                self._take_changes(self.book.resolve_run(run_id, now, why), now)
        return True

    def _may_judge(self, run: Run, now: float) -> bool:
        return self._persistence is None or self._persistence.may_judge(run, now)

    def _resume(self, incidents: Sequence[Incident]) -> None:
        if self._traces is not None:
            self._traces.resume(incidents)
        self.outlets.resume(incidents, self.clock())
        for incident in incidents:
            if incident.is_open:
                self._tell_monitors(incident, ChangeKind.UPDATED)

    def _forget(self, run: RunId) -> None:
        self.outlets.forget(run)
        self.control.forget(run)
        if self._traces is not None:
            self._traces.forget(run)

    def _take_changes(self, changes: list[IncidentChange], now: float) -> None:
        """Publish changes in order, once they are stored or `timeline.PUBLISH_PATIENCE` is over."""
        if not changes:
            return
        written = None
        if self._persistence is not None:
            with self._faults.caught("store", "could not store incidents"):
                written = self._persistence.save(changes)
            # The book may change its incidents later. Publish them as they were stored.
            changes = [IncidentChange(one.kind, copy.copy(one.incident), one.data) for one in changes]
        self._to_publish.append(_Unpublished(changes, written, now + timeline.PUBLISH_PATIENCE))
        self._publish_written()

    def _publish_written(self) -> None:
        now = self.clock()
        while self._to_publish and self._to_publish[0].is_due(now):
            due = self._to_publish.popleft()
            self._publish(due.changes, now)

    def _publish(self, changes: list[IncidentChange], now: float) -> None:
        """Publish changes. If one receiver fails, the others are still notified."""
        for change in changes:
            run = self.runs.by_id.get(change.incident.run)
            has_files = run is not None and len(change.incident.files) >= len(run.ranks)
            self.outlets.publish(change, now, has_files=has_files)
            is_new = change.kind is ChangeKind.OPENED
            with self._faults.caught("control", "could not send commands to monitors"):
                if change.kind is not ChangeKind.RESOLVED and change.incident.cause is None:
                    self._command_monitors(change.incident, is_new)
                self._tell_monitors(change.incident, change.kind)
                self._slow_looks.note(change)
            if self._traces is not None:
                with self._faults.caught("forward", "could not send an incident's trace"):
                    self._traces.publish(change)

    def _tell_monitors(self, incident: Incident, kind: ChangeKind) -> None:
        """Tell the run's monitors what the incident says now, for the job's log."""
        if incident.finding.is_slowness:
            return
        is_cause, page = incident.cause is None, self._page(incident)
        summary = incident.finding.summary[:MAX_REASON] if is_cause else ""
        is_over = kind is ChangeKind.RESOLVED or not is_cause
        self.control.tell(
            incident.run, control_pb2.Incident(incident_id=incident.id, summary=summary, page_url=page, is_over=is_over)
        )

    def _page(self, incident: Incident) -> str:
        return self.links.of(incident.data, incident.detected, incident.detected).get("page", "")

    def _command_monitors(self, incident: Incident, is_new: bool) -> None:
        """Ask the run's monitors for their files, once, and the culprits' monitors for native stacks.

        Asks for nothing if ranks are only slow. Also asks the monitors of the previous run: ranks that have not joined
        this run are still there.
        """
        finding = incident.finding
        if finding.is_slowness:
            return
        summary = finding.summary[:MAX_REASON]
        if is_new:
            self.control.dump(incident.run, incident.id, summary, self._page(incident), incident.data["trace_id"])
        if finding.culprit_ranks:
            self.control.inspect(incident.run, incident.id, finding.culprit_ranks)
        known = self.runs.by_id.get(incident.run)
        before = self.runs.before(known) if known is not None else None
        if known is None or before is None:
            return
        if is_new:
            self.control.dump(before.id, "", summary)  # one line in the job's log is enough
        if finding.culprit_ranks:  # their processes may have had other ranks there
            here = {state.place.process for state in known.ranks.values()}
            came = {rank for rank, state in before.ranks.items() if state.place.process in here}
            self.control.inspect(before.id, incident.id, sorted(self.control.watching(before.id) - came))


def _call_in(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Call ``work`` in a loop, from another thread, unless the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(work)
