"""The store, which survives a restart. One thread writes it, so that a slow disk or a lock delays nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.incidents.incident import Incident, is_told
from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import Heard, Saved, Shared, StoreError, Turn
from otel_fr_collector.storage.batch import MAX_NOTES, Batch, FinishedJob, NoteKey, of_incidents, of_notes
from otel_fr_collector.storage.reported_ends import ReportedEnds
from otel_fr_collector.storage.stored_rows import StoredRows

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

STEP_SECONDS = 1.0
"""Seconds after which the thread checks again what must be retried or deleted."""
SETTLE_SECONDS = 0.3
"""Seconds that a query waits for pending writes. These mostly take some milliseconds."""
END_MARGIN = 1.0
"""Seconds that closing may take beyond the time for retries: a write may be waiting for a lock."""


class Written:
    """The progress of one batch.

    Attributes:
        is_done: the batch is in the database, or waits in the backend because the database cannot be used now. Also
            true if the store was closed before.
    """

    def __init__(self) -> None:
        self.is_done = False


class Answer(NamedTuple):
    """A question to the other collectors, and its answer. None: the database did not answer."""

    heard: Heard
    shared: Shared | None


class Store:
    """A database and the thread that writes it. Call all methods, except queries, from the thread that made the store.

    Only `load` and `close` wait for the database. Writes happen in the order of the calls.

    Args:
        clock, wall: monotonic and Unix time in seconds.

    Attributes:
        ends: reports of ends that wait for a verdict. None: there is no folder for them.
        on_written: called in the writing thread after each write.
    """

    def __init__(
        self,
        backend: StoredRows,
        metrics: Metrics,
        wall: Callable[[], float] = time.time,
        *,
        clock: Callable[[], float] = time.monotonic,
        ends: ReportedEnds | None = None,
    ) -> None:
        self.ends = ends
        self._backend = backend
        self._metrics = metrics
        self._wall = wall
        self._clock = clock
        self._changed = threading.Condition()
        self._using = threading.Lock()
        """Held while the backend is used for anything but queries."""
        self._batch = Batch()
        self._waiting: list[Written] = []
        self._errors: list[Exception] = []
        self._heard: Heard | None = None
        self._answer: Answer | None = None
        self._is_busy = False
        self._end: float | None = None
        self._is_new = False
        self._late: Saved | None = None
        self._notes: dict[NoteKey, str] = {}
        self._thread = threading.Thread(target=self._run, name="otel-fr store", daemon=True)
        self.on_written: Callable[[], None] = lambda: None

    # ---- what is written

    @property
    def is_shared(self) -> bool:
        """Whether other collectors may use the database, too."""
        return self._backend.is_shared

    @property
    def problem(self) -> str:
        """Why the database cannot be used now. Empty: it can."""
        return self._backend.problem

    @property
    def is_up(self) -> bool:
        """Whether everything saved so far is in the database."""
        with self._changed:
            return self._is_idle() and self._backend.is_up

    def settled(self, seconds: float) -> bool:
        """Wait at most this many seconds until the thread has tried to write everything saved so far.

        May be called from any thread.

        Returns:
            Whether everything is in the database.
        """
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds) and self._backend.is_up

    def save(self, incidents: Iterable[Incident], runs: Iterable[Run] = ()) -> Written:
        """Write incidents and runs, as they are now, in one transaction."""
        return self._put(of_incidents(incidents, runs, self._clock(), self._wall()))

    def drop_run(self, run: RunId) -> None:
        """Delete a run that has no open incident any more."""
        self._put(Batch(runs={run: None}))

    def note(self, outlet: str, values: Mapping[str, str]) -> None:
        """Save an outlet's notes on incidents, by their ids."""
        batch = of_notes(outlet, values)
        with self._changed:
            is_known = batch.notes.items() <= self._notes.items()
        if not is_known:
            self._remember(batch.notes)
            self._put(batch)

    @contextlib.contextmanager
    def turn(self, outlet: str, number: str, mark: str) -> Iterator[Turn]:
        """Take the turn to notify an outlet's receiver of an incident. Only one collector at a time has it.

        May be called from any thread. While the database cannot be used, each collector has a turn of its own.

        Args:
            mark: the mark of what is sent (`Incident.mark`). It is noted if `Turn.is_told` is true at the end.

        Raises:
            StoreError: another collector has the turn.
        """
        key = (outlet, number)
        with contextlib.ExitStack() as stack:
            turn = Turn(is_told(self._notes.get(key), mark))
            is_shared = False
            if self.is_shared and not turn.is_told:
                with contextlib.suppress(*self._backend.errors):
                    turn = stack.enter_context(self._backend.turn(outlet, number, mark))
                    is_shared = True
            was_told = turn.is_told
            yield turn
            with contextlib.suppress(*self._backend.errors):
                stack.close()
            if turn.is_told and not was_told:
                self._remember({key: mark})
                if not is_shared:
                    self._put(of_notes(outlet, {number: mark}))

    def save_job(self, job: FinishedJob) -> None:
        """Save a job that is over, or the line of a running one."""
        self._put(Batch(jobs=[job]))

    # ---- what is restored

    def load(self, limit: int) -> Saved:
        """Load the open and the newest resolved incidents, at most ``limit`` in total, and the runs of open ones."""
        with self._using:
            saved = self._backend.load(limit)
        self._remember(saved.notes)
        with self._changed:
            self._wake()
        return saved

    def notes(self, outlet: str) -> dict[str, str]:
        """An outlet's notes, by the ids of incidents: those that were loaded, and those made since."""
        with self._changed:
            return {number: value for (own, number), value in self._notes.items() if own == outlet}

    def take_new(self) -> bool:
        """Return True once if an empty database was begun. The caller must then save its incidents again.

        The store saves the notes again itself.
        """
        with self._changed:
            is_new, self._is_new = self._is_new, False
        if is_new:
            self._put(Batch(notes=dict(self._notes)))
        return is_new

    def take_late(self) -> Saved | None:
        """Return, once, the contents of a database that became readable only after the start. Otherwise None."""
        with self._changed:
            late, self._late = self._late, None
        if late is not None:
            self._remember(late.notes)
        return late

    def _remember(self, notes: Mapping[NoteKey, str]) -> None:
        with self._changed:
            for key, value in notes.items():
                self._notes.pop(key, None)
                self._notes[key] = value
            while len(self._notes) > MAX_NOTES:
                del self._notes[next(iter(self._notes))]

    # ---- what is shared with other collectors

    def share(self, heard: Heard) -> None:
        """Ask what the other collectors have. `take_shared` returns the answer later."""
        with self._changed:
            self._heard = heard
            self._wake()

    def take_shared(self) -> Answer | None:
        """Return, once, the answer to the last `share`. None: there is none yet."""
        with self._changed:
            answer, self._answer = self._answer, None
        if answer is not None and answer.shared is not None:
            self._remember(answer.shared.taken.notes)
        return answer

    # ---- the queries of `StoredRows`, for any thread; they raise StoreError

    def find(self, **query: Any) -> list[CollectorIncidentData]:
        return self._read(lambda: self._backend.find(**query))

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        return self._read(lambda: self._backend.count_consequences(causes))

    def consequences(self, cause: CollectorIncidentData) -> list[str]:
        return self._read(lambda: self._backend.consequences(cause))

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        return self._read(lambda: self._backend.get(number, prefix))

    def finished(self, **query: Any) -> list[FinishedJob]:
        return self._read(lambda: self._backend.finished(**query))

    def finished_job(self, key: str) -> FinishedJob | None:
        return self._read(lambda: self._backend.finished_job(key))

    def _read(self, query: Callable[[], _T]) -> _T:
        try:
            return query()
        except self._backend.errors as error:
            with self._changed:
                self._errors = [error]
                self._wake()
            raise StoreError(str(error)) from error

    # ---- the thread

    def close(self, until: float = 0.0) -> None:
        """Write what is pending and close the database. The store accepts nothing after that.

        Args:
            until: monotonic time until which a failed write is tried again.
        """
        with self._changed:
            if self._end is None:
                self._end = until
                self._wake()
        self._thread.join(max(0.0, until - time.monotonic()) + END_MARGIN)
        if self._thread.is_alive():
            _log.error("the store did not close in time: pending writes are lost")

    def _put(self, batch: Batch) -> Written:
        written = Written()
        with self._changed:
            if self._end is not None:
                written.is_done = True
            else:
                self._batch.add(batch)
                self._waiting.append(written)
                self._wake()
        return written

    def _wake(self) -> None:
        """Wake the thread. The caller holds the lock."""
        if self._thread.ident is None:
            self._thread.start()
        self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not (self._is_busy or self._batch or self._errors)

    def _has_work(self) -> bool:
        return bool(self._batch or self._errors or self._heard) or self._end is not None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, STEP_SECONDS)
                batch, self._batch = self._batch, Batch()
                waiting, self._waiting = self._waiting, []
                errors, self._errors = self._errors, []
                heard, self._heard = self._heard, None
                end = self._end
                self._is_busy = True
            try:
                with self._using:
                    self._work(batch, errors, end)
            except Exception:  # noqa: BLE001  without this thread, nothing more would be stored
                self._metrics.errors.labels("store").inc()
                _log.exception("the store failed")
            for written in waiting:
                written.is_done = True
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
            if waiting:
                self.on_written()
            if heard is not None:
                self._exchange(heard)
            if end is not None:
                return

    def _exchange(self, heard: Heard) -> None:
        """Ask what other collectors have. Queries do not wait for this: meanwhile, all own incidents can be found."""
        shared = None
        try:
            with self._using:
                shared = self._backend.share(heard)
        except Exception:  # noqa: BLE001  as in `_run`
            self._metrics.errors.labels("store").inc()
            _log.exception("could not exchange shared state with other collectors")
        with self._changed:
            self._answer = Answer(heard, shared)

    def _work(self, batch: Batch, errors: Sequence[Exception], end: float | None) -> None:
        backend = self._backend
        for error in errors:
            backend.broken(error)
        if batch:
            backend.put(batch)
        if end is not None:
            backend.close(end)
            return
        backend.step(time.monotonic())
        if backend.take_new():
            with self._changed:
                self._is_new = True
        if backend.take_late():
            late = backend.load(MAX_INCIDENTS)
            with self._changed:
                self._late = late
