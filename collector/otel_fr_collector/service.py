"""The collector's heart: from what arrives to what is published. Everything here runs in one event loop."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

from otel_fr.incident_trace import incident_trace
from otel_fr.match import Finding, diagnose
from otel_fr_collector.control import Control
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.gauges import JobGauges
from otel_fr_collector.incidents import credibility, triggers
from otel_fr_collector.incidents.book import MAX_INCIDENTS, ChangeKind, Incident, IncidentBook, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.incidents.restart_grace import RestartGrace
from otel_fr_collector.jobs import snapshot as evidence
from otel_fr_collector.jobs.ingest import Ingest
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.outlets.event_stream import Stream
from otel_fr_collector.outlets.file import IncidentsFile
from otel_fr_collector.outlets.outlet import Outlet
from otel_fr_collector.outlets.terminal import Terminal
from otel_fr_collector.storage.store import Retention, Store

_log = logging.getLogger(__name__)

TICK = 0.1
HELD_UP = 1.0
"""Seconds between two ticks from which on the collector itself was held up, so that nobody's silence counts."""
HOUSEKEEPING = 1.0
AT_ONCE = 1_000
"""Ranks and calls that are judged on the spot, within some milliseconds; more are judged in a thread."""
GC_THRESHOLD = (5_000, 5, 10)
SWITCH_INTERVAL = 0.000_5
"""Seconds for which a thread that judges may keep the interpreter from the intake; Python's own are ten times that."""
TRACED = "trace"
"""Name under which the store notes the trace of which an incident's root span is on the queue."""
DEAD_RESOLVE = 600.0
"""Seconds without a word of a run after which its incidents are over."""


@dataclass
class Outlets:
    """Where things go; None: nowhere. ``others``: alerts, webhooks and the like."""

    terminal: Terminal = field(default_factory=lambda: Terminal(None))
    file: IncidentsFile | None = None
    forward: Forwarder | None = None
    others: list[Outlet] = field(default_factory=list)

    def start(self) -> None:
        for outlet in self.others:
            outlet.start()

    async def stop(self, seconds: float) -> None:
        """Deliver what is still pending, for at most so many seconds."""
        await asyncio.gather(*(outlet.stop(seconds) for outlet in self.others))


class Service:
    """Runs, incidents, and what is done about them.

    Args:
        store: keeps incidents over the collector's own end; None: they end with it.
        retention: of resolved incidents in memory; the store has its own.
        links: shown with incidents.
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        outlets: Outlets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        store: Store | None = None,
        retention: Retention | None = None,
        links: Links | None = None,
    ) -> None:
        self.metrics = metrics
        self.runs = Runs()
        self.book = IncidentBook(wall)
        self.store = store
        self.links = links or Links()
        self.stream = Stream()
        self._retention = retention or Retention()
        self._grace = RestartGrace(clock())
        self.control = Control()
        self.ingest = Ingest(self.runs, metrics, clock, wall)
        self._outlets = outlets
        self._clock = clock
        self._wall = wall
        self._last_tick = clock()
        self._kept_house = clock()
        self._traced: dict[str, None] = {}
        self._untraced: list[Incident] = []
        """Published before the restart of a collector that ended before their root spans were queued."""
        self._failed: set[RunId] = set()
        self._saved: dict[RunId, tuple[int, int]] = {}
        self._judging: dict[RunId, tuple[triggers.Due, asyncio.Task[None]]] = {}
        metrics.registry.register(JobGauges(self.runs, self.book.open_data))
        if store is not None:
            self._restore(store)

    @property
    def judging(self) -> int:
        """How many runs are being judged in a thread just now."""
        return len(self._judging)

    async def take(self, signal: str, data: bytes) -> bytes:
        """One OTLP request: taken in, and queued for the backends; returns the response's bytes.

        Raises:
            MalformedError: it is not the OTLP message it should be; it is not handed on either.
            SpoolError: it is taken in, but cannot be kept for the backends; its sender should send it again.
        """
        response = await self.ingest.take(signal, data)
        if self._outlets.forward is not None:
            await self._outlets.forward.take(signal, data)
        return response

    async def run(self) -> None:
        """Judge what has arrived, for ever."""
        # Calls come by the ten thousand and are in no cycle; requests of half a megabyte are (gRPC's), but are few.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        sys.setswitchinterval(SWITCH_INTERVAL)
        while True:
            await asyncio.sleep(TICK)
            self.step()

    def step(self, *, final: bool = False) -> None:
        """Do what is due now. ``final``: the collector stops, so nothing waits any longer."""
        now = self._clock()
        if now - self._last_tick > HELD_UP:
            self.runs.shift_silence(now)
        self._last_tick = now
        for run in list(self.runs.by_id.values()):
            try:
                self._judge(run, now, final)
            except Exception:  # noqa: BLE001  one run's odd data must not cost the others their verdict
                self._cannot_judge(run)
        if final or now - self._kept_house >= HOUSEKEEPING:
            self._kept_house = now
            try:
                self._keep_house(now)
            except Exception:  # noqa: BLE001  the next second tries again; ending here would lose what waits
                self.metrics.errors.labels("housekeeping").inc()
                _log.exception("old jobs and incidents could not be cleared away")
        self._outlets.terminal.step(now, final=final)
        if final:
            self.stream.close()

    def _judge(self, run: Run, now: float, final: bool) -> None:
        if run.is_over or (run.id in self._judging and not final):
            return
        if self._grace.waits_for(run, now):
            return  # at the end too: its ranks are on their way back, and whoever comes after us will hear them
        has_open = bool(self.book.open_of(run.id))
        last_change = self.book.changed.get(run.id, float("-inf"))
        reason = triggers.due(run, now, has_open=has_open, last_change=last_change, final=final)
        if run.id in self._judging:  # the collector stops before that verdict is there, so it is found anew
            begun, task = self._judging.pop(run.id)
            task.cancel()
            reason = triggers.Due(*(a or b for a, b in zip(astuple(begun), astuple(reason), strict=True)))
        if reason:
            started = time.perf_counter()
            taken = evidence.snapshot(run, now)
            triggers.mark_judged(run, reason, now)
            if not final and taken.size > AT_ONCE:
                task = asyncio.get_running_loop().create_task(self._judge_aside(run, taken, reason, started))
                self._judging[run.id] = reason, task
            else:
                self._conclude(run, taken, reason, diagnose(taken.evidence()), started)
        if has_open or reason:
            self._publish(self.book.add_files(run, now), now)

    async def _judge_aside(self, run: Run, taken: evidence.Snapshot, reason: triggers.Due, started: float) -> None:
        """Judge a run of many ranks in another thread, so that the intake goes on meanwhile."""
        try:
            findings = await asyncio.to_thread(lambda: diagnose(taken.evidence()))
            if self.runs.by_id.get(run.id) is run and not run.is_over:
                self._conclude(run, taken, reason, findings, started)
        except Exception:  # noqa: BLE001  as in `step`
            self._cannot_judge(run)
        finally:
            self._judging.pop(run.id, None)

    def _conclude(
        self, run: Run, taken: evidence.Snapshot, reason: triggers.Due, findings: list[Finding], started: float
    ) -> None:
        """Tell what follows from the findings, which hold for the moment of the snapshot."""
        now = self._clock()
        took = time.perf_counter() - started
        run.diagnosed, run.judging_took = now, took
        self.metrics.diagnoses.inc()
        self.metrics.diagnosis_seconds.inc(took)
        changes = self.book.update(
            run,
            self._credible(run, taken, findings, reason),
            now=now,
            wall=self._wall(),
            issued=lambda finding: credibility.issue_time(taken, finding),
            moved_on=lambda finding: credibility.has_moved_on(run, finding),
        )
        self._publish(changes, now)

    def _cannot_judge(self, run: Run) -> None:
        self.metrics.errors.labels("judge").inc()
        run.diagnosed = self._clock()
        run.mismatch_since = run.ended_since = None
        if run.id not in self._failed and len(self._failed) < 1_000:
            self._failed.add(run.id)
            _log.exception("job %r could not be judged", run.id.job)

    def _credible(
        self, run: Run, taken: evidence.Snapshot, findings: list[Finding], reason: triggers.Due
    ) -> list[Finding]:
        """The causes that rest on fresh word, and the consequences of these or of causes published before."""
        findings = [finding for finding in findings if not credibility.has_completed(run, finding)]
        causes = [f for f in findings if f.caused_by is None and credibility.is_credible(taken, f, reason)]
        known = {finding.key for finding in causes}
        known.update(key for incident in self.book.open_of(run.id) for key in incident.keys)
        return causes + [f for f in findings if f.caused_by is not None and f.caused_by in known]

    def _restore(self, store: Store) -> None:
        """Go on where an earlier life of the collector has ended; tells nobody anything."""
        now, wall = self._clock(), self._wall()
        saved = store.load(MAX_INCIDENTS)
        traced = store.notes(TRACED)
        self.book.restore(saved.incidents, now, wall)
        for known in saved.runs:
            if self.book.open_of(known.id):
                run = self.runs.get(known.id, now)
                if run is not None:
                    run.world_size, run.resource = known.world_size, known.resource
                    run.restore(known.ranks(now, wall))
                    self._grace.expect(run)
            self._saved[known.id] = (0, 0)
        for incident in saved.incidents:
            if incident.is_open:
                # Its run may have been lost: the incident then waits for word of it, or of a newer attempt.
                lost = self.runs.get(incident.run, now)
                if lost is not None:
                    self._grace.expect(lost)
            trace = incident.data.get("trace_id")
            if isinstance(trace, str):
                if incident.is_open and traced.get(incident.id) != trace and trace not in self._traced:
                    self._untraced.append(incident)
                else:
                    self._traced[trace] = None
                if self._outlets.forward is not None:
                    # Its ranks' spans come when their calls end, so mostly to this life of the collector.
                    self._outlets.forward.keep_trace(bytes.fromhex(trace))
        for outlet in self._outlets.others:
            outlet.resume(saved.incidents)

    def _keep_house(self, now: float) -> None:
        self._grace.step(now)
        self._trace_rest()
        for run in self.runs.forget(now):
            self._close(run.id, now)
        newest: dict[str, int] = {}
        for run in self.runs.by_id.values():
            newest[run.id.job] = max(newest.get(run.id.job, 0), run.id.attempt)
        for run_id in self.book.runs():
            known = self.runs.by_id.get(run_id)
            if known is None:
                self._close(run_id, now)
                continue
            if newest[run_id.job] > run_id.attempt and not known.is_live(now):
                known.is_over = True
            if known.is_over or now - known.last_heard > DEAD_RESOLVE:
                self._publish(self.book.resolve_run(run_id, now), now)
        self.book.drop_old(self._wall() - self._retention.seconds)
        if self.store is not None:
            if self.store.take_late():
                self._restore(self.store)
            if self.store.take_new():
                self._saved.clear()
                self.store.save(self.book.known())
            self._save_runs(self.store)
            self.store.step(now)

    def _save_runs(self, store: Store) -> None:
        """Keep how ranks of runs with open incidents ended; it is said only once."""
        firing = set(self.book.runs())
        for run_id in [known for known in self._saved if known not in firing]:
            del self._saved[run_id]
            store.drop_run(run_id)
        for run_id in firing:
            run = self.runs.by_id.get(run_id)
            if run is None:
                continue
            ranks = run.ranks.values()
            known = (sum(rank.ended is not None for rank in ranks), sum(bool(rank.stack) for rank in ranks))
            if self._saved.get(run_id) != known:
                self._saved[run_id] = known
                store.save((), [run])

    def _close(self, run: RunId, now: float) -> None:
        self._publish(self.book.resolve_run(run, now), now)
        self.book.drop_run(run)

    def _publish(self, changes: list[IncidentChange], now: float) -> None:
        if changes and self.store is not None:  # first of all: a restart must know what has been published
            self.store.save([change.incident for change in changes])
        for change in changes:
            data = change.data
            if self._outlets.file is not None:
                self._outlets.file.write(data)
            run = self.runs.by_id.get(change.incident.run)
            has_files = run is not None and len(change.incident.files) >= len(run.ranks)
            self._outlets.terminal.publish(change, now, has_files=has_files)
            if change.kind is ChangeKind.OPENED and change.incident.cause is None:
                self.metrics.incidents.labels(str(data["category"])).inc()
                self._call_for_evidence(change)
            self._trace(change)
            for outlet in self._outlets.others:
                outlet.publish(change)
            self.stream.publish(change)

    def _call_for_evidence(self, change: IncidentChange) -> None:
        incident = change.incident
        run, reason = incident.run, incident.finding.summary[:500]
        self.control.dump(run, incident.id, reason)
        if incident.finding.culprit_ranks:
            self.control.peer_failed(run, incident.id, incident.finding.culprit_ranks, reason)

    def _trace(self, change: IncidentChange) -> None:
        """Send the incident's root span, once for each trace: spans cannot be changed afterwards."""
        data = change.data
        trace = data["trace_id"]
        if self._outlets.forward is None or not isinstance(trace, str) or trace in self._traced:
            return
        run = self.runs.by_id.get(change.incident.run)
        resource = run.resource if run is not None else {}
        request = incident_trace(data, resource, change.incident.started, change.incident.detected)
        self._outlets.forward.keep_trace(bytes.fromhex(trace))
        if request is not None:
            self._traced[trace] = None
            if len(self._traced) > 10_000:
                del self._traced[next(iter(self._traced))]
            self._outlets.forward.offer(
                TRACES, request, functools.partial(self._note_traced, change.incident.id, trace)
            )

    def _note_traced(self, number: str, trace: str) -> None:
        if self.store is not None:
            self.store.note(TRACED, {number: trace})

    def _trace_rest(self) -> None:
        """Send the root spans that are missing, each once its job's resource, by which backends group, is known."""
        for incident in list(self._untraced):
            run = self.runs.by_id.get(incident.run)
            if incident.is_open and run is not None and not run.resource:
                continue
            self._untraced.remove(incident)
            self._trace(IncidentChange(ChangeKind.UPDATED, incident, incident.data))
