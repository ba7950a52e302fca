"""Answers what a launcher asks: the faults of one run, and what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TypedDict

from otel_fr.attribution.v1 import attribution_pb2
from otel_fr_collector.attribution.facts import Fault, History, faults_of
from otel_fr_collector.attribution.rules import Advice, decide
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.store import SETTLE_SECONDS, Store

WINDOW = 86_400.0
"""Seconds before the newest fault within which earlier ones count: a node's deaths of last month say little."""
MAX_INCIDENTS = 500
"""Of the job, the newest, causes and consequences alike."""
MAX_BYTES = 8 << 20
"""Of their JSON."""
FRESH = 0.5
"""Seconds for which what was read of a job is used again."""
MAX_FAILURES = 16
"""Causes of the run that an answer lists."""
MAX_NODES = 64
"""Nodes to be left out that an answer lists."""


MAX_INT32 = 2**31 - 1


class FailureData(TypedDict):
    """One cause of the run. ``rank``, ``node``: of its first culprit; None, "": not known."""

    incident_id: str
    category: str
    rank: int | None
    node: str
    error: str
    site: str
    summary: str


class ReasonData(TypedDict):
    """One rule that holds."""

    rule: str
    recommendation: str
    text: str
    incident_ids: list[str]


class AttributionData(TypedDict):
    """An answer as JSON; docs/attribution.md says what the keys mean."""

    job: str
    attempt: int
    run_id: str
    recommendation: str
    exclude_nodes: list[str]
    reasons: list[ReasonData]
    failure: FailureData | None
    failures: list[FailureData]


class Attribution:
    """Asked by both ports.

    Args:
        store: None: incidents are in memory only.
    """

    def __init__(self, runs: Runs, book: IncidentBook, store: Store | None) -> None:
        self._runs = runs
        self._book = book
        self._store = store
        self._reading = asyncio.Lock()
        self._recent: dict[str, tuple[float, Sequence[Fault]]] = {}

    async def find(self, job: str, attempt: int | None = None) -> AttributionData | None:
        """What is known of a job's run, and advised.

        Args:
            job: which its client may see.
            attempt: whose newest run is asked about; None: of the job's newest run.

        Returns:
            None: there is no such run.
        """
        faults = await self._faults(job)
        run = self._run(job, attempt, faults)
        if run is None:
            return None
        now = tuple([fault for fault in faults if fault.run == run])
        newest = max((fault.detected for fault in now), default=float("inf"))
        before = [fault for fault in faults if fault.run != run and newest - WINDOW <= fault.detected <= newest]
        known = self._runs.by_id.get(run)
        requests = () if known is None else tuple(known.requests.values())
        return _data(run, now, decide(History(now, tuple(before), requests)))

    async def _faults(self, job: str) -> Sequence[Fault]:
        """The faults of a job, oldest first: read at most once in `FRESH` seconds, however many clients ask."""
        async with self._reading:
            now = time.monotonic()
            self._recent = {name: kept for name, kept in self._recent.items() if now - kept[0] < FRESH}
            known = self._recent.get(job)
            if known is None:
                known = self._recent[job] = (now, await self._read(job))
            return known[1]

    async def _read(self, job: str) -> Sequence[Fault]:
        """The faults that the newest incidents of a job show, as they were last published."""
        store = self._store
        if store is not None:
            with contextlib.suppress(StoreError):  # the log says why
                return await asyncio.to_thread(_stored, store, job)
        return faults_of([one.data for one in self._book.known() if one.run.job == job][-MAX_INCIDENTS:])

    def _run(self, job: str, attempt: int | None, faults: Sequence[Fault]) -> RunId | None:
        """The newest run of a job that is known, by its telemetry or, if it is silent for long, by its incidents."""
        live = [run for run in self._runs.by_id.values() if run.id.job == job and attempt in (None, run.id.attempt)]
        if live:
            return max(live, key=lambda run: run.first_seen).id
        return next((fault.run for fault in reversed(faults) if attempt in (None, fault.run.attempt)), None)


def as_message(data: AttributionData) -> attribution_pb2.GetResponse:
    """The answer as protobuf."""
    response = attribution_pb2.GetResponse(
        job_id=data["job"],
        attempt=max(0, min(data["attempt"], MAX_INT32)),
        run_id=data["run_id"],
        recommendation=data["recommendation"],
        exclude_nodes=data["exclude_nodes"],
    )
    for reason in data["reasons"]:
        response.reasons.add(**reason)
    for failure in data["failures"]:
        response.failures.add(**failure)
    return response


def _stored(store: Store, job: str) -> Sequence[Fault]:
    if not store.settled(SETTLE_SECONDS):
        raise StoreError("the newest incidents are in memory only")
    return faults_of(store.find(job=job, state=None, limit=MAX_INCIDENTS, max_size=MAX_BYTES))


def _data(run: RunId, faults: Sequence[Fault], advice: Advice) -> AttributionData:
    failures = [_failure(fault) for fault in faults[:MAX_FAILURES]]
    return {
        "job": run.job,
        "attempt": run.attempt,
        "run_id": run.run,
        "recommendation": advice.recommendation.value,
        "exclude_nodes": list(advice.nodes[:MAX_NODES]),
        "reasons": [
            {
                "rule": reason.rule,
                "recommendation": reason.recommendation.value,
                "text": reason.text,
                "incident_ids": list(reason.incidents),
            }
            for reason in advice.reasons
        ],
        "failure": failures[0] if failures else None,
        "failures": failures,
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
