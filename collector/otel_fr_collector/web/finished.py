"""Jobs that are not in this collector's memory: finished jobs, and jobs of collectors with the same store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import heapq
import json
import logging

from otel_fr.api_answers import JobState
from otel_fr_collector import timeline
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import MAX_RUNS
from otel_fr_collector.network.tokens import EVERYTHING, Access
from otel_fr_collector.service import Service
from otel_fr_collector.storage.backend import MAX_PAGE, StoreError
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.web.job_detail import detail, picture
from otel_fr_collector.web.job_views import job_key, summary

_log = logging.getLogger(__name__)

MAX_LATEST = 256
"""Jobs that are kept in memory if there is no store."""
MAX_DETAIL = 64 * 1024
"""Compressed bytes of a job's full JSON. A larger job keeps only its line in the list. 1,024 ranks in 144 groups take
20 kB."""
SHOW_SECONDS = 5.0
"""Seconds after which the line of a running job is written again for the other collectors."""
SHOWN_AT_ONCE = 64
"""Lines that are written at the same time. The others follow a second later."""
_AT_END: dict[JobState, JobState] = {"incident": "failed", "slow": "silent"}
"""The state to keep for a run that is over: its open incidents are about to be resolved."""


class Finished:
    """Keeps each run that the service drops: in the store, or the last `MAX_LATEST` in memory if there is no store.

    A run is written to the store as soon as none of its ranks reports, and again when it is dropped: the collector may
    be restarted in between. The list shows the run once it is no longer live.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: asyncio.Queue[Run] = asyncio.Queue(MAX_RUNS)
        """Runs that have ended and are not kept yet. All may end at once."""
        self._latest: dict[str, FinishedJob] = {}
        """Without a store, the jobs by key, in the order in which they were dropped."""
        self._shown: dict[RunId, float] = {}
        """Monotonic time at which each running job's line was last written for the other collectors."""
        service.on_dropped = self._note
        if service.store is not None:
            service.on_over = self._note

    async def run(self) -> None:
        """Keep runs as they end, until cancelled."""
        while True:
            run = await self._waiting.get()
            try:
                # A run that was restored with its incidents, and has sent nothing since, has no groups. The store has
                # more, from before the restart.
                if run.groups or not await self.is_kept(job_key(run.id), EVERYTHING):
                    self._keep(await self._finished(run))
            except Exception:  # noqa: BLE001  one run that cannot be shown must not stop the others
                self._service.metrics.errors.labels("housekeeping").inc()
                _log.exception("could not store a finished job")
            self._waiting.task_done()

    async def show(self) -> None:
        """Write a line of each running job for the collectors that share the store, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            try:
                await self._show(self._service.clock())
            except Exception:  # noqa: BLE001  as in `run`
                self._service.metrics.errors.labels("housekeeping").inc()
                _log.exception("could not share running jobs with other collectors")

    async def _show(self, now: float) -> None:
        store, runs = self._service.store, self._service.runs.by_id
        if store is None or store.problem:
            return
        self._shown = {run: at for run, at in self._shown.items() if run in runs}
        heard = [run for run in runs.values() if now - run.last_seen < SHOW_SECONDS]
        shown_at = {run.id: self._shown.get(run.id, float("-inf")) for run in heard}
        due = [run for run in heard if now - shown_at[run.id] >= SHOW_SECONDS]
        for run in heapq.nsmallest(SHOWN_AT_ONCE, due, key=lambda run: shown_at[run.id]):
            self._shown[run.id] = now
            wall = self._service.wall()
            shown = {**await summary(run, self._service.book, now, wall), "collector_page": self._service.links.page}
            store.save_job(
                FinishedJob(job_key(run.id), run.id.job, wall - (now - run.last_seen), json.dumps(shown), b"")
            )

    async def elsewhere(self, access: Access) -> list[dict[str, object]]:
        """The lines of running jobs that the collectors with the same store have written."""
        store = self._service.store
        if store is None or not store.is_shared:
            return []
        query = functools.partial(store.finished, before=None, prefix=access.prefix, limit=MAX_PAGE)
        with contextlib.suppress(StoreError):
            found = await asyncio.to_thread(query)
            read = ((job, json.loads(job.summary)) for job in found)
            return [shown for job, shown in read if self._is_running(job, shown)]
        return []

    def _is_running(self, job: FinishedJob, shown: dict[str, object]) -> bool:
        return "is_finished" not in shown and job.ended > self._service.wall() - timeline.OTHERS_UNHEARD

    async def all_kept(self) -> None:
        """Wait until every run that has ended is kept."""
        await self._waiting.join()

    async def jobs(self, access: Access, before: float | None, limit: int) -> list[dict[str, object]]:
        """The lines of the newest ``limit`` jobs that ended before a Unix time, newest first."""
        store = self._service.store
        live = {job_key(run) for run in self._service.runs.by_id}
        live |= {str(shown["id"]) for shown in await self.elsewhere(access)}
        found: list[FinishedJob] | None = None
        if store is not None:
            query = functools.partial(store.finished, before=before, prefix=access.prefix, limit=limit + len(live))
            with contextlib.suppress(StoreError):  # the log says why
                found = await asyncio.to_thread(query)
        if found is None:
            latest = sorted(self._latest.values(), key=lambda job: job.ended, reverse=True)
            fit = (job for job in latest if before is None or job.ended < before)
            found = [job for job in fit if access.may_see(job.job)]
        over = (json.loads(job.summary) for job in found if job.key not in live)
        return [_over(shown) for shown in over][:limit]

    async def job(self, key: str, access: Access) -> bytes | None:
        """One job in full as JSON, or only its line in the list if the job is too large. None: it is not known."""
        found = await self._find(key, access)
        if found is None:
            return None
        if found.detail:
            return await asyncio.to_thread(gzip.decompress, found.detail)
        shown = json.loads(found.summary)
        return json.dumps(shown if self._is_running(found, shown) else _over(shown)).encode()

    async def is_kept(self, key: str, access: Access) -> bool:
        """Return whether `job` would find the job."""
        return await self._find(key, access) is not None

    async def _find(self, key: str, access: Access) -> FinishedJob | None:
        found = self._latest.get(key)
        store = self._service.store
        if found is None and store is not None:
            with contextlib.suppress(StoreError):
                found = await asyncio.to_thread(store.finished_job, key)
        return found if found is not None and access.may_see(found.job) else None

    def _note(self, run: Run) -> None:
        if self._waiting.full():  # the oldest gives way
            self._waiting.get_nowait()
            self._waiting.task_done()
        self._waiting.put_nowait(run)

    async def _finished(self, run: Run) -> FinishedJob:
        now, wall = self._service.clock(), self._service.wall()
        seen = await picture(run, self._service.book, now, wall)
        head = seen.head
        head["state"] = _AT_END.get(head["state"], head["state"])
        whole = await detail(run, seen, now)
        ended = wall - (now - run.last_seen)
        packed = await asyncio.to_thread(_pack, {**whole, "is_finished": True})
        text = json.dumps({**head, "is_finished": True})
        return FinishedJob(job_key(run.id), run.id.job, ended, text, packed if len(packed) <= MAX_DETAIL else b"")

    def _keep(self, job: FinishedJob) -> None:
        store = self._service.store
        if store is None:
            self._latest.pop(job.key, None)  # the run was dropped before, and came back
            self._latest[job.key] = job
            if len(self._latest) > MAX_LATEST:
                del self._latest[next(iter(self._latest))]
        else:
            store.save_job(job)


def _over(shown: dict[str, object]) -> dict[str, object]:
    """A job's line once it is over. If the job ended with its collector, this is its last line as a running job."""
    state = "silent" if shown["state"] == "running" else shown["state"]
    return shown if "is_finished" in shown else {**shown, "state": state, "is_finished": True}


def _pack(data: dict[str, object]) -> bytes:
    return gzip.compress(json.dumps(data).encode(), 6)
