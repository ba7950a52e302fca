"""The judge: runs the match engine on each run when due, and records credible findings in the book."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from otel_fr.match import Finding, diagnose
from otel_fr_collector.incidents import credibility, triggers
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.incidents.restart_grace import RestartGrace
from otel_fr_collector.incidents.triggers import Triggers
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import Snapshot, snapshot
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import Workers

_log = logging.getLogger(__name__)

MAX_SIZE_ON_LOOP = 300
"""Ranks and calls of a run that is judged on the event loop (some milliseconds); larger runs are judged in a thread."""
STEP_SECONDS = 0.02
"""Longest work of one step, but for the run with which it ends; what is left is done in the next one."""
TURN_SECONDS = 0.002
"""Of a step, what one tenant gets before the next has its turn."""
THREADS = 8
"""Threads for larger runs, of which each tenant may use one."""
MANY_THREADS = 4
"""Threads in use from which no tenant gets a second one: they share one interpreter."""
MAX_LOGGED_FAILURES = 1_000
"""Runs whose failed judgement was logged, so that it is logged once."""


class Judge:
    """Judges runs, small ones on the event loop and large ones in a few threads of its own.

    Tenants have turns, and so have the jobs of one tenant: a thousand dead jobs of one tenant delay the verdict on
    another's by one turn, not by a thousand verdicts.

    It owns the judgements in progress, the order of turns, and the runs that could not be judged.

    Args:
        grace: runs of which ranks may still return after a restart are not judged.
        publish: called with the incident changes that follow from a verdict, and the monotonic time.
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(
        self,
        runs: Runs,
        book: IncidentBook,
        grace: RestartGrace,
        metrics: Metrics,
        publish: Callable[[list[IncidentChange], float], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._runs = runs
        self._book = book
        self._grace = grace
        self._metrics = metrics
        self._publish = publish
        self._clock = clock
        self._wall = wall
        self._workers = Workers(THREADS, "otel-fr judge")
        self._in_thread: dict[RunId, tuple[Triggers, asyncio.Task[None]]] = {}
        self._threads_of: Counter[str] = Counter()
        self._rounds: dict[str, deque[Run]] = {}
        """By tenant, the runs that were not looked at in its round so far; the tenant whose turn it is comes first."""
        self._failed: set[RunId] = set()

    @property
    def in_progress(self) -> int:
        """How many runs are being judged in a thread."""
        return len(self._in_thread)

    def step(self, now: float, *, final: bool = False) -> bool:
        """Judge the runs for which it is time. ``final``: the collector stops, so nothing waits any longer.

        Returns:
            False: the time of the step was over before every run was looked at.
        """
        end = time.perf_counter() + STEP_SECONDS
        if final:
            self._rounds.clear()
        for tenant, runs in self._runs.by_tenant.items():
            if tenant not in self._rounds:
                self._rounds[tenant] = deque(runs.values())
        while self._rounds:
            tenant = next(iter(self._rounds))
            waiting = self._rounds.pop(tenant)
            self._take_turn(waiting, now, final)
            if waiting:
                self._rounds[tenant] = waiting
            if not final and time.perf_counter() > end:
                return not self._rounds
        return True

    def _take_turn(self, waiting: deque[Run], now: float, final: bool) -> None:
        end = time.perf_counter() + TURN_SECONDS
        while waiting:
            run = waiting.popleft()
            if self._runs.by_id.get(run.id) is run:
                try:
                    if run.compare_pieces() and not final:
                        waiting.append(run)
                    self._judge_if_due(run, now, final)
                except Exception:  # noqa: BLE001  one run's invalid data must not prevent verdicts for others
                    self._cannot_judge(run)
            if time.perf_counter() > end:
                return

    def _judge_if_due(self, run: Run, now: float, final: bool) -> None:
        if run.is_replaced or (not final and (run.id in self._in_thread or not self._has_room(run))):
            return
        if self._grace.waits_for(run, now):
            return  # also at shutdown: its ranks are reconnecting and report to the next collector
        has_open = bool(self._book.open_of(run.id))
        last_change = self._book.changed.get(run.id, float("-inf"))
        reason = triggers.due(run, now, has_open=has_open, last_change=last_change, final=final)
        if run.id in self._in_thread:  # the collector stops before that verdict is there, so the run is judged again
            begun, task = self._in_thread.pop(run.id)
            task.cancel()
            reason |= begun
        if reason:
            self._judge(run, reason, now, final)
        if has_open or reason:
            self._publish(self._book.add_files(run, now), now)

    def _has_room(self, run: Run) -> bool:
        """Whether a thread is free for the run, should it need one."""
        if run.largest_size <= MAX_SIZE_ON_LOOP:
            return True
        most = 2 if len(self._in_thread) < MANY_THREADS else 1
        return len(self._in_thread) < THREADS and self._threads_of[run.tenant] < most

    def _judge(self, run: Run, reason: Triggers, now: float, final: bool) -> None:
        started = time.perf_counter()
        taken = snapshot(run, now)
        run.mark_judged(now, mismatch=reason.mismatch, bad_end=reason.bad_end)
        if not final and taken.size > MAX_SIZE_ON_LOOP:
            task = asyncio.get_running_loop().create_task(self._judge_in_thread(run, taken, reason, started))
            self._in_thread[run.id] = reason, task
            self._threads_of[run.tenant] += 1
        else:
            self._conclude(run, taken, reason, diagnose(taken.evidence()), started)

    async def _judge_in_thread(self, run: Run, taken: Snapshot, reason: Triggers, started: float) -> None:
        """Judge a large run while the event loop continues to take requests."""
        try:
            findings = await self._workers.run(lambda: diagnose(taken.evidence()))
            if self._runs.by_id.get(run.id) is run and not run.is_replaced:
                self._conclude(run, taken, reason, findings, started)
        except Exception:  # noqa: BLE001  as in `step`
            self._cannot_judge(run)
        finally:
            self._in_thread.pop(run.id, None)
            self._threads_of[run.tenant] -= 1
            if not self._threads_of[run.tenant]:
                del self._threads_of[run.tenant]

    def _conclude(self, run: Run, taken: Snapshot, reason: Triggers, findings: list[Finding], started: float) -> None:
        """Publish what follows from the findings, which hold for the moment of the snapshot."""
        now = self._clock()
        took = time.perf_counter() - started
        run.note_verdict(now, took)
        self._metrics.judgement_duration.observe(took)
        changes = self._book.update(
            run,
            self._credible(run, taken, findings, reason),
            now=now,
            wall=self._wall(),
            enqueued=lambda finding: credibility.enqueue_time(taken, finding),
            moved_on=lambda finding: credibility.has_moved_on(run, finding),
        )
        self._publish(changes, now)

    def _credible(self, run: Run, taken: Snapshot, findings: list[Finding], reason: Triggers) -> list[Finding]:
        """The causes that rest on recent reports, and the consequences of these or of causes published before."""
        findings = [finding for finding in findings if not credibility.has_completed(run, finding)]
        causes = [f for f in findings if f.caused_by is None and credibility.is_credible(taken, f, reason)]
        known = {finding.key for finding in causes}
        known.update(key for incident in self._book.open_of(run.id) for key in incident.keys)
        return causes + [f for f in findings if f.caused_by is not None and f.caused_by in known]

    def _cannot_judge(self, run: Run) -> None:
        self._metrics.errors.labels("judge").inc()
        run.abandon_judgement(self._clock())
        if run.id not in self._failed and len(self._failed) < MAX_LOGGED_FAILURES:
            self._failed.add(run.id)
            _log.exception("job %r could not be judged", run.id.job)
