"""The judge: runs the match engine on each run when due, and records credible findings in the book."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from otel_fr.match import UNPLACED, Category, Finding, diagnose
from otel_fr_collector import timeline
from otel_fr_collector.aside import Aside
from otel_fr_collector.incidents import credibility, slowness, triggers, witnesses
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.incidents.triggers import Judging, Triggers
from otel_fr_collector.jobs import open_waits, stops
from otel_fr_collector.jobs.open_waits import OpenWait
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import Snapshot, largest_size, snapshot
from otel_fr_collector.metrics import Metrics

_log = logging.getLogger(__name__)

MAX_SIZE_ON_LOOP = 300
"""Ranks and calls of a run that is judged on the event loop (some milliseconds); larger runs are judged aside."""
STEP_SECONDS = 0.02
"""Seconds after which a step begins no further run. The rest is done in the next step."""
TURN_SECONDS = 0.002
"""Seconds of a step that one tenant gets before the next tenant's turn."""
CHILDREN = 4
"""Processes for larger runs. Each takes a core, and memory for what it touches."""
MANY_CHILDREN = 2
"""While this many processes are in use, no tenant gets a second one."""
SOON = 1.5
"""Within this many seconds of a wait's threshold, a verdict is likely: ranks that move report before that."""
LOOK_SECONDS, LOOK_PAUSE, LEAST_LOOK_PAUSE = 0.001, 20.0, 5.0
"""If the check whether to judge a run takes over `LOOK_SECONDS` of CPU, as for thousands of ranks, a pause follows.
The pause is 20 times as long, so that checks take about a twentieth of the time. If a wait is near its threshold, the
pause is only 5 times as long, so that the wait is seen as soon as it is long."""
MAX_LOGGED_FAILURES = 1_000
"""Runs whose failed judgement was logged, so that it is logged once."""


class Judge:
    """Judges runs, small ones on the event loop and large ones in child processes (`aside`).

    Tenants take turns, and so do the jobs of one tenant. A thousand dead jobs of one tenant delay another tenant's
    verdict by one turn, not by a thousand verdicts.

    It owns the judgements in progress, the order of turns, and the runs that could not be judged.

    Args:
        grace: runs whose ranks may still return after a restart. They are not judged.
        publish: called with the incident changes that follow from a verdict, and the monotonic time.
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(
        self,
        runs: Runs,
        book: IncidentBook,
        grace: ReturnGrace,
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
        self._judging: defaultdict[RunId, Judging] = defaultdict(Judging)
        self._aside: dict[RunId, asyncio.Task[None]] = {}
        self._aside_of: Counter[str] = Counter()
        self._rounds: dict[str, deque[Run]] = {}
        """By tenant, the runs that are still to be checked in its round. The tenant whose turn it is comes first."""
        self._failed: set[RunId] = set()

    def is_busy(self, run: RunId) -> bool:
        """Whether the run is being judged aside."""
        return run in self._aside

    def is_due_soon(self, now: float) -> bool:
        """Whether a run is being judged, or soon will be (`SOON`): nothing else should take long now."""
        return bool(self._aside) or any(abs(one.next_wait_at - now) < SOON for one in self._judging.values())

    def has_failed(self, now: float) -> bool:
        """Whether some run could not be judged for minutes."""
        return any(one.keeps_failing(now) for one in self._judging.values())

    def forget_dropped(self) -> None:
        """Forget the runs that are no longer known."""
        for run in self._judging.keys() - self._runs.by_id.keys():
            del self._judging[run]

    def step(self, now: float) -> bool:
        """Judge the runs that are due.

        Returns:
            False: the time of the step was over before every run was checked.
        """
        end = time.perf_counter() + STEP_SECONDS
        for tenant, runs in self._runs.by_tenant.items():
            if tenant not in self._rounds:
                self._rounds[tenant] = deque(runs.values())
        while self._rounds:
            tenant = next(iter(self._rounds))
            waiting = self._rounds.pop(tenant)
            self._take_turn(waiting, now)
            if waiting:
                self._rounds[tenant] = waiting
            if time.perf_counter() > end:
                return not self._rounds
        return True

    async def finish(self, seconds: float) -> None:
        """Judge what is due before the collector stops, for ``seconds`` at most: tenants in turn, small runs first.

        What could not be judged is logged; the ranks report to the next collector.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        not_judged = 0
        for run in _in_turn(self._runs):
            try:
                not_judged += loop.time() >= until or not await self._judge_last(run, until)
            except Exception:  # noqa: BLE001  as in `step`
                self._cannot_judge(run)
        for task in list(self._aside.values()):
            task.cancel()
        if not_judged:
            _log.warning("%d jobs were not judged one last time before shutdown", not_judged)

    async def _judge_last(self, run: Run, until: float) -> bool:
        """Judge a run for the last time if it is due; False: there was no time. ``until``: the loop's time."""
        if not await self._is_judged(run, until):
            return False
        run.compare_pieces()
        self._judge_if_due(run, self._clock(), final=True)
        await asyncio.sleep(0)
        return await self._is_judged(run, until)

    async def _is_judged(self, run: Run, until: float) -> bool:
        """Wait for a judgement that is in progress; False: it takes longer than ``until``."""
        if run.id in self._aside:
            loop = asyncio.get_running_loop()
            await asyncio.wait({self._aside[run.id]}, timeout=max(0.0, until - loop.time()))
        return run.id not in self._aside

    def _take_turn(self, waiting: deque[Run], now: float) -> None:
        end = time.perf_counter() + TURN_SECONDS
        while waiting:
            run = waiting.popleft()
            if self._runs.by_id.get(run.id) is run:
                try:
                    if run.compare_pieces():
                        waiting.append(run)
                    self._judge_if_due(run, now)
                except Exception:  # noqa: BLE001  one run's invalid data must not prevent verdicts for others
                    self._cannot_judge(run)
            if time.perf_counter() > end:
                return

    def _judge_if_due(self, run: Run, now: float, *, final: bool = False) -> None:
        if run.is_replaced or run.id in self._aside or not (final or self._has_room(run)):
            return
        if self._grace.waits_for(run, now):
            return  # also at shutdown: its ranks are reconnecting and report to the next collector
        judging = self._judging[run.id]
        self._note_slowness(run, judging, now, final=final)
        has_open = bool(self._book.open_faults(run.id))
        last_change = self._book.changed.get(run.id, float("-inf"))
        if now < judging.look_at and not final:
            return
        begun = time.thread_time()  # other programs that take the processor are no reason to look less often
        reason = triggers.due(run, judging, now, has_open=has_open, last_change=last_change, final=final)
        judging.next_wait_at = reason.next_wait_at
        if (took := time.thread_time() - begun) > LOOK_SECONDS:
            judging.look_at = now + min(LOOK_PAUSE * took, max(LEAST_LOOK_PAUSE * took, reason.next_wait_at - now))
        if reason:
            self._judge(run, judging, reason, now)
        if has_open or reason:
            if judging.files_seen != run.files_noted:
                judging.files_seen = run.files_noted
                self._publish(self._book.add_files(run, now), now)
            self._publish(self._book.add_ras(run, now), now)

    def _note_slowness(self, run: Run, judging: Judging, now: float, *, final: bool) -> None:
        if final or now - judging.slowness_at >= timeline.SLOWNESS_INTERVAL:
            judging.slowness_at = now
            known = {group: one.finding for group, one in self._book.open_slowness(run.id).items()}
            late = slowness.find(run, known)
            self._publish(self._book.note_slowness(run, now, self._wall(), late), now)

    def _has_room(self, run: Run) -> bool:
        """Whether a process may be started for the run, should it need one."""
        # Check the ranks first: adding up the calls of 25,000 groups ten times a second takes a hundredth of a core.
        if len(run.ranks) <= MAX_SIZE_ON_LOOP and largest_size(run) <= MAX_SIZE_ON_LOOP:
            return True
        most = 2 if len(self._aside) < MANY_CHILDREN else 1
        return len(self._aside) < CHILDREN and self._aside_of[run.tenant] < most

    def _judge(self, run: Run, judging: Judging, reason: Triggers, now: float) -> None:
        """Judge a small run now, a large one aside."""
        begun = time.perf_counter()
        wall = self._wall()
        before = self._runs.before(run)
        is_small = max(len(run.ranks), len(before.ranks) if before else 0) <= MAX_SIZE_ON_LOOP
        taken = snapshot(run, now, wall, before) if is_small else None
        work = functools.partial(_verdict, taken, run, now, wall, before)
        aside = Aside(work) if taken is None or taken.size > MAX_SIZE_ON_LOOP else None
        judging.begin(run, reason, now)
        if aside is None:
            self._conclude(run, work(), reason, begun)
            return
        self._aside[run.id] = asyncio.get_running_loop().create_task(self._await(run, aside, reason, begun))
        self._aside_of[run.tenant] += 1

    async def _await(self, run: Run, aside: Aside[_Verdict], reason: Triggers, begun: float) -> None:
        try:
            verdict = await aside.result()
            if self._runs.by_id.get(run.id) is run and not run.is_replaced:
                self._conclude(run, verdict, reason, begun)
        except Exception:  # noqa: BLE001  as in `step`
            self._cannot_judge(run)
        finally:
            self._judging[run.id].put_back(run)  # if this was cancelled, a bad end may wait for the next collector
            self._aside.pop(run.id, None)
            self._aside_of[run.tenant] -= 1
            if not self._aside_of[run.tenant]:
                del self._aside_of[run.tenant]

    def _conclude(self, run: Run, verdict: _Verdict, reason: Triggers, begun: float) -> None:
        """Publish what follows from a verdict, and count its waits. Its findings hold for the moment of the snapshot.

        Args:
            begun: the `time.perf_counter` when the judgement began.
        """
        now = self._clock()
        taken = verdict.taken
        open_waits.count(run, verdict.waits, now)
        run.to_ask |= verdict.to_ask
        seconds = time.perf_counter() - begun
        self._metrics.judgement_duration.observe(seconds)
        dead = {rank for one in verdict.findings if one.category is Category.RANK_DEAD for rank in one.culprit_ranks}
        if stops.is_stopped(run, now, dead):
            changes = self._book.resolve_run(run.id, now, Resolution.STOPPED)
        else:
            changes = self._found(run, verdict, reason, now)
        self._publish(changes, now)
        self._judging[run.id].note_verdict(now, taken.silent_since, seconds=seconds, cpu=verdict.cpu)

    def _found(self, run: Run, verdict: _Verdict, reason: Triggers, now: float) -> list[IncidentChange]:
        """Update the book with the findings; returns the changes."""
        credible = self._credible(run, verdict, reason)
        keys = {finding.key for finding in credible}
        told = [one for one in self._book.open_faults(run.id) if keys.isdisjoint(one.keys)]
        over = {one.id for one in told if credibility.has_moved_on(run, one.finding)}
        enqueued = {finding.key: credibility.enqueue_time(verdict.taken, finding) for finding in credible}
        changes = self._book.update(run, credible, now=now, wall=self._wall(), enqueued=enqueued, over=over)
        if run.ended_clean:
            changes += self._book.resolve_run(run.id, now)
        elif stops.has_ended(run):
            changes += self._book.note_end(run.id, now)
        return changes

    def _credible(self, run: Run, verdict: _Verdict, reason: Triggers) -> list[Finding]:
        """The causes that rest on recent reports, and the consequences of these or of causes published before.

        A wait that a section of the program explains is no incident, unless it is one already. Neither is a wait for
        processes that another run's incident accuses, because they have not come to this run.
        """
        findings = [finding for finding in verdict.findings if not credibility.has_completed(run, finding)]
        told = self._book.open_of(run.id)
        known = {key for incident in told for key in incident.keys}
        causes = [
            one
            for one in findings
            if one.caused_by is None
            and (one.key in known or not (one.is_excused or self._is_told(run, one)))
            and one.key not in verdict.early
            and credibility.is_credible(run, verdict.taken, one, reason)
        ]
        known = {key for incident in told if incident.cause is None for key in incident.keys}
        known.update(finding.key for finding in causes)
        return causes + [f for f in findings if f.caused_by is not None and f.caused_by in known]

    def _is_told(self, run: Run, finding: Finding) -> bool:
        """Whether an open incident of another run accuses the same processes."""
        others = [one for other in self._runs.beside(run) for one in self._book.open_of(other.id)]
        told = {process for one in others for process in _accused(one.finding)}
        return bool(told) and told.issuperset(_accused(finding))

    def _cannot_judge(self, run: Run) -> None:
        self._metrics.errors.labels("judge").inc()
        self._judging[run.id].note_failure(run, self._clock())
        if run.id not in self._failed and len(self._failed) < MAX_LOGGED_FAILURES:
            self._failed.add(run.id)
            _log.exception("could not judge job %r", run.id.job)


class _Verdict(NamedTuple):
    """What follows from a snapshot.

    Attributes:
        taken: the snapshot, as far as `credibility` needs it.
        to_ask: see `witnesses`. early: keys of the causes to hold back (`witnesses.is_early`).
        cpu: CPU time of the verdict in seconds, with the snapshot if it was taken aside.
    """

    taken: Snapshot
    findings: list[Finding]
    waits: list[OpenWait]
    to_ask: set[int]
    early: frozenset[str]
    cpu: float


def _verdict(taken: Snapshot | None, run: Run, now: float, wall: float, before: Run | None) -> _Verdict:
    """Judge a snapshot.

    Args:
        taken: None: it is taken here. before: as for `snapshot`.
    """
    begun = time.thread_time()  # CPU time, which other programs do not change
    taken = taken or snapshot(run, now, wall, before)
    findings = diagnose(taken.evidence())
    waits, to_ask = open_waits.find(taken), witnesses.to_ask(taken, findings)
    early = frozenset(one.key for one in findings if one.caused_by is None and witnesses.is_early(taken, one))
    about = taken.about(findings)
    return _Verdict(about, findings, waits, to_ask, early, time.thread_time() - begun)


def _accused(finding: Finding) -> set[tuple[str, int | None]]:
    """`Place.process` of each culprit. A culprit whose place is not known counts as `UNPLACED`."""
    return {finding.places.get(rank, UNPLACED).process for rank in finding.culprit_ranks}


def _in_turn(runs: Runs) -> list[Run]:
    """All runs: one of each tenant in turn, each tenant's smallest runs first."""
    by_tenant = (sorted(own.values(), key=lambda run: len(run.ranks)) for own in runs.by_tenant.values())
    return [run for turn in itertools.zip_longest(*by_tenant) for run in turn if run is not None]
