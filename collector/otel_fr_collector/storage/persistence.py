"""What the collector keeps in the store over a restart, and what it restores from there when it starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.incidents.restart_grace import RestartGrace
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.storage.backend import Saved
from otel_fr_collector.storage.store import Store, Written


class Persistence:
    """Restores incidents and their runs, and keeps the store up to date.

    It owns the record of which runs are in the store, and how much was known of each when it was written.

    Args:
        grace: restored runs wait there until their ranks report again.
        resume: called with the restored incidents, oldest first.
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(
        self,
        store: Store,
        runs: Runs,
        book: IncidentBook,
        grace: RestartGrace,
        resume: Callable[[Sequence[Incident]], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._runs = runs
        self._book = book
        self._grace = grace
        self._resume = resume
        self._clock = clock
        self._wall = wall
        self._saved: dict[RunId, tuple[int, int]] = {}
        """How many ranks had ended, and how many had a stack, when the run was last saved."""

    def restore(self) -> None:
        """Go on where the collector ended before the restart; nothing is published."""
        self.take(self._store.load(MAX_INCIDENTS))

    def take(self, saved: Saved) -> int:
        """Go on with incidents and runs from before a restart, or of another collector.

        Returns:
            How many incidents are new to this collector.
        """
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
        return len(new)

    def take_over(self, saved: Saved, runs: Collection[RunId]) -> int:
        """Go on with runs of another collector; what this one knows better replaces what is saved of them.

        Returns:
            How many incidents are new to this collector.
        """
        count = self.take(saved) if saved.incidents or saved.runs else 0
        old = {(one.run, one.id): one.changed for one in saved.incidents}
        own = set(runs)
        better = [
            one
            for one in (self._book.known() if own else ())
            if one.run in own and one.changed > old.get((one.run, one.id), float("-inf"))
        ]
        if better:
            self._store.save(better)
        return count

    def save(self, changes: Sequence[IncidentChange]) -> Written:
        """Write incidents down, before they are published anywhere else: a restart must know what was published."""
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

    def _save_runs(self) -> None:
        """Keep how ranks of runs with open incidents ended: their monitors report it only once."""
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
