"""Keeps incidents and their runs in the store, and restores them after a restart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector import timeline
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.ingest import Ingest
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.otlp.signals import LOGS
from otel_fr_collector.storage.backend import Heard, Saved
from otel_fr_collector.storage.store import Store, Written

SHARE_SECONDS = 1.0
"""Seconds between two exchanges with other collectors."""


class Persistence:
    """Restores incidents and their runs, and keeps the store up to date.

    Args:
        grace: where restored runs wait until their ranks report again.
        resume: called with the restored incidents, oldest first.
        forget: called with a run whose incidents another collector continues.
        clock, wall: monotonic and Unix time in seconds.
        is_judging: whether a run is being judged.
    """

    def __init__(
        self,
        store: Store,
        runs: Runs,
        book: IncidentBook,
        grace: ReturnGrace,
        resume: Callable[[Sequence[Incident]], None],
        forget: Callable[[RunId], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        is_judging: Callable[[RunId], bool],
    ) -> None:
        self._store = store
        self._is_judging = is_judging
        self._runs = runs
        self._book = book
        self._grace = grace
        self._resume = resume
        self._forget = forget
        self._clock = clock
        self._wall = wall
        self._saved: dict[RunId, tuple[int, int]] = {}
        """The runs in the store: how many ranks had ended, and how many had a stack, when the run was last saved."""
        self._heard: dict[RunId, float] = {}
        """Runs that report, and the monotonic time since when."""
        self._asked: set[RunId] = set()
        """Runs for which the database has answered what other collectors have found."""
        self._shared_at = float("-inf")
        self._is_asking = False

    def restore(self) -> None:
        """Restore the state from before a restart. Publishes nothing."""
        self.take(self._store.load(MAX_INCIDENTS))

    def take(self, saved: Saved) -> None:
        """Continue incidents and runs from before a restart, or those that another collector has left."""
        now, wall = self._clock(), self._wall()
        known_before = {(one.run, one.id) for one in self._book.known()}
        new = [one for one in saved.incidents if (one.run, one.id) not in known_before]
        self._book.restore(new, now, wall)
        for known in saved.runs:
            if self._book.open_of(known.id):
                run = self._runs.get(known.id, now)
                if run is not None:
                    run.restore(known.world_size, known.resource, known.ranks(now, wall))
                    self._grace.add(run)
            self._saved[known.id] = (0, 0)
        for incident in new:
            if incident.is_open:
                # Its run may be missing in the store: the incident then stays open until the run, or a newer attempt
                # of the job, reports.
                lost = self._runs.get(incident.run, now)
                if lost is not None:
                    self._grace.add(lost)
        self._resume(new)

    async def replay(self, ingest: Ingest) -> None:
        """Ingest again the requests that waited for a verdict when the collector ended, and keep new ones from now on.

        Skips runs whose incidents are over: their verdict was stored.
        """
        ends = self._store.ends
        if ends is None:
            return
        for run, data in ends.load():
            if self._book.open_of(run) or not self._book.has_any(run):
                with contextlib.suppress(ValueError):
                    await ingest.take(LOGS, data)
        ingest.keep_ends = ends.keep

    def may_judge(self, run: Run, now: float) -> bool:
        """Return whether the findings of other collectors about a run are known, or the wait for them is over.

        Args:
            now: monotonic time.
        """
        since = self._heard.get(run.id, run.first_seen)
        return not self._store.is_shared or run.id in self._asked or now - since > timeline.SHARE_PATIENCE

    def share(self, now: float) -> list[CollectorIncidentData]:
        """Exchange state with the other collectors, and continue incidents whose collector has died.

        Returns:
            The incidents that other collectors have changed.
        """
        if not self._store.is_shared:
            return []
        answer = self._store.take_shared()
        changed: list[CollectorIncidentData] = []
        if answer is not None:
            self._is_asking = False
            if answer.shared is not None:
                self._asked.update(answer.heard.new)
                self.take(answer.shared.taken)
                for run in answer.shared.lost:
                    self._saved.pop(run, None)  # the other collector drops it from the store
                    self._book.hand_over(run)
                    self._forget(run)
                changed = answer.shared.changed
        if not self._is_asking and now - self._shared_at >= SHARE_SECONDS:
            self._shared_at, self._is_asking = now, True
            heard = [run.id for run in self._runs.by_id.values() if now - run.last_seen < timeline.ALL_REPORTED]
            self._asked.difference_update([run for run in heard if run not in self._heard])
            self._asked &= self._runs.by_id.keys()
            self._heard = {run: self._heard.get(run, now) for run in heard}
            new = [run for run in heard if run not in self._asked]
            self._store.share(Heard(new, {run: run in self._heard for run in self._book.runs()}))
        return changed

    def save(self, changes: Sequence[IncidentChange]) -> Written:
        """Save incidents before they are published anywhere else: a restart must know what was published."""
        return self._store.save([change.incident for change in changes])

    def step(self) -> None:
        """Bring the store up to date."""
        late = self._store.take_late()
        if late is not None:
            self.take(late)
        if self._store.take_new():
            self._saved.clear()
            self._store.save(self._book.known())
        self._save_runs()
        ends = self._store.ends
        if ends is not None and self._store.is_up:
            ends.let_go(run for run in ends.runs() if not self._awaits_verdict(run))
            ends.step()

    def _awaits_verdict(self, run_id: RunId) -> bool:
        run = self._runs.by_id.get(run_id)
        is_due = run is not None and run.bad_end_since is not None and not run.is_replaced
        return is_due or self._is_judging(run_id)

    def _save_runs(self) -> None:
        """Save how the ranks of runs with open incidents ended, because their monitors report it only once."""
        firing = set(self._book.runs())
        for run_id in [known for known in self._saved if known not in firing]:
            del self._saved[run_id]
            self._store.drop_run(run_id)
        for run_id in firing:
            run = self._runs.by_id.get(run_id)
            if run is None:
                continue
            ranks = run.ranks.values()
            known = (sum(rank.ended is not None for rank in ranks), sum(bool(rank.stack) for rank in ranks))
            if self._saved.get(run_id) != known:
                self._saved[run_id] = known
                self._store.save((), [run])
