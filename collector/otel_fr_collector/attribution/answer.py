"""Answers launchers: the faults of one run, and what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypedDict

from otel_fr.attribution.v1 import attribution_pb2
from otel_fr_collector.attribution.facts import Fault, History, faults_of
from otel_fr_collector.attribution.rules import Advice, ReasonData, decide
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.store import SETTLE_SECONDS, Store

WINDOW = 86_400.0
"""Earlier faults count if they came at most this many seconds before the newest one: a node's deaths of last month say
little."""
MAX_INCIDENTS = 500
"""The newest incidents of the job that are read, causes and consequences alike."""
MAX_BYTES = 8 << 20
"""Characters of the incidents' JSON that are read."""
FRESH = 0.5
"""Seconds for which the faults of a job are reused."""
MAX_FAILURES = 16
"""Causes of the run that an answer lists."""
MAX_NODES = 64
"""Nodes to exclude that an answer lists."""
MAX_OTHERS = 16
"""Other runs that an answer names."""
OVERLAP = 10.0
"""Two runs exist at the same time if both have reported for this many seconds. The last reports of a run may come after
the first reports of the next run."""

MAX_INT32 = 2**31 - 1


class FailureData(TypedDict):
    """One cause of the run.

    Attributes:
        incident_id: id of the incident.
        category: category of the fault.
        rank: rank of the first culprit; null: not known.
        node: node of the first culprit; empty: not known.
        error: the first culprit's uncaught exception, cut short.
        site: the first culprit's line of code, `file:line function`.
        summary: one sentence.
    """

    incident_id: str
    category: str
    rank: int | None
    node: str
    error: str
    site: str
    summary: str


class OtherRunData(TypedDict):
    """Another run of the same job name at the same time.

    Attributes:
        summary: summary of its first cause; empty: it has none.
    """

    attempt: int
    run_id: str
    recommendation: str
    exclude_nodes: list[str]
    summary: str


class AttributionData(TypedDict):
    """An answer as JSON. docs/guide/fault-tolerance.md has an example.

    Attributes:
        recommendation: `restart`, `exclude_node` or `stop`.
        exclude_nodes: nodes to restart without, at most 64.
        reasons: the rules that hold, the deciding one first.
        failure: the first of `failures`; null: there is none.
        failures: the causes, oldest first.
        other_runs: runs of the same name at the same time, at most 16.
    """

    job: str
    attempt: int
    run_id: str
    recommendation: str
    exclude_nodes: list[str]
    reasons: list[ReasonData]
    failure: FailureData | None
    failures: list[FailureData]
    other_runs: list[OtherRunData]


class Attribution:
    """Finds the answers, for the gRPC and the HTTP port.

    Args:
        store: None: incidents are in memory only.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self, runs: Runs, book: IncidentBook, store: Store | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runs = runs
        self._book = book
        self._store = store
        self._clock = clock
        self._reading = asyncio.Lock()
        self._recent: dict[str, tuple[float, Sequence[Fault]]] = {}

    async def find(self, job: str, attempt: int | None = None, run_id: str | None = None) -> AttributionData | None:
        """Find the faults of a job's run, and the advice.

        Args:
            job: the job's name. The caller has checked that the client may see it.
            attempt: answer for the newest run of this attempt. None: of any attempt.
            run_id: answer for this run. None: for the newest.

        Returns:
            The answer. None: there is no such run.
        """
        faults = await self._faults(job)
        run = self._run(job, attempt, run_id, faults)
        if run is None:
            return None
        others = [_other(one.id, *self._decided(one.id, faults)) for one in self._beside(run)[:MAX_OTHERS]]
        return _data(run, *self._decided(run, faults), others)

    def _decided(self, run: RunId, faults: Sequence[Fault]) -> tuple[Sequence[Fault], Advice]:
        """The faults of one run, oldest first, and the advice. ``faults``: the faults of all runs of its job."""
        now = tuple([fault for fault in faults if fault.run == run])
        newest = max((fault.detected for fault in now), default=float("inf"))
        before = [fault for fault in faults if fault.run != run and newest - WINDOW <= fault.detected <= newest]
        known = self._runs.by_id.get(run)
        requests = () if known is None else tuple(known.requests.values())
        return now, decide(History(now, tuple(before), requests))

    def _beside(self, asked: RunId) -> list[Run]:
        """The runs of other processes with the same job name at the same time, the newest first.

        A run with some of the same processes belongs to the same job and is left out. It began when
        `torch.distributed` was started again, or when torchft formed another quorum.
        """
        run = self._runs.by_id.get(asked)
        if run is None:
            return []
        beside = [
            one
            for one in self._runs.by_id.values()
            if one is not run
            and one.id.job == asked.job
            and not (one.is_replaced or run.is_replaced)
            and min(one.last_seen, run.last_seen) - max(one.first_seen, run.first_seen) >= OVERLAP
        ]
        own = _processes(run) if beside else set()
        beside = [one for one in beside if not own & _processes(one)]
        return sorted(beside, key=lambda one: -one.first_seen)

    async def _faults(self, job: str) -> Sequence[Fault]:
        """The faults of a job, oldest first. They are read at most once in `FRESH` seconds, for all clients."""
        async with self._reading:
            now = self._clock()
            self._recent = {name: kept for name, kept in self._recent.items() if now - kept[0] < FRESH}
            known = self._recent.get(job)
            if known is None:
                known = self._recent[job] = (now, await self._read(job))
            return known[1]

    async def _read(self, job: str) -> Sequence[Fault]:
        """Read the faults of a job from its newest incidents, as last published."""
        store = self._store
        if store is not None:
            with contextlib.suppress(StoreError):  # the log says why
                return await asyncio.to_thread(_stored, store, job)
        return faults_of([one.data for one in self._book.known() if one.run.job == job][-MAX_INCIDENTS:])

    def _run(self, job: str, attempt: int | None, run_id: str | None, faults: Sequence[Fault]) -> RunId | None:
        """Find the newest run of a job: in memory or, if it has been silent for long, by its faults."""

        def is_asked(run: RunId) -> bool:
            return attempt in (None, run.attempt) and run_id in (None, run.run)

        live = [run for run in self._runs.by_id.values() if run.id.job == job and is_asked(run.id)]
        if live:
            return max(live, key=lambda run: run.first_seen).id
        return next((fault.run for fault in reversed(faults) if is_asked(fault.run)), None)


def as_message(data: AttributionData) -> attribution_pb2.GetResponse:
    """The answer as protobuf."""
    response = attribution_pb2.GetResponse(
        job_id=data["job"],
        attempt=_int32(data["attempt"]),
        run_id=data["run_id"],
        recommendation=data["recommendation"],
        exclude_nodes=data["exclude_nodes"],
    )
    for reason in data["reasons"]:
        response.reasons.add(**reason)
    for failure in data["failures"]:
        response.failures.add(**failure)
    for other in data["other_runs"]:
        response.other_runs.add(**{**other, "attempt": _int32(other["attempt"])})
    return response


def _int32(number: int) -> int:
    return max(0, min(number, MAX_INT32))


def _processes(run: Run) -> set[tuple[str, int]]:
    """Host and process id of each rank whose process id is known."""
    return {(one.place.host, one.place.pid) for one in run.ranks.values() if one.place.pid is not None}


def _stored(store: Store, job: str) -> Sequence[Fault]:
    if not store.settled(SETTLE_SECONDS):
        raise StoreError("the newest incidents are in memory only")
    return faults_of(store.find(job=job, state=None, limit=MAX_INCIDENTS, max_size=MAX_BYTES))


def _other(run: RunId, faults: Sequence[Fault], advice: Advice) -> OtherRunData:
    return {
        "attempt": run.attempt,
        "run_id": run.run,
        "recommendation": advice.recommendation.value,
        "exclude_nodes": list(advice.nodes[:MAX_NODES]),
        "summary": faults[0].summary if faults else "",
    }


def _data(run: RunId, faults: Sequence[Fault], advice: Advice, others: list[OtherRunData]) -> AttributionData:
    failures = [_failure(fault) for fault in faults[:MAX_FAILURES]]
    return {
        "job": run.job,
        "attempt": run.attempt,
        "run_id": run.run,
        "recommendation": advice.recommendation.value,
        "exclude_nodes": list(advice.nodes[:MAX_NODES]),
        "reasons": list(advice.reasons),
        "failure": failures[0] if failures else None,
        "failures": failures,
        "other_runs": others,
    }


def _failure(fault: Fault) -> FailureData:
    first = fault.culprits[0] if fault.culprits else None
    return {
        "incident_id": fault.incident,
        "category": fault.category,
        "rank": None if first is None else first.rank,
        "node": "" if first is None else first.node,
        "error": "" if first is None else first.error,
        "site": "" if first is None else first.site,
        "summary": fault.summary,
    }
