"""Verdicts that fail, on the event loop and in a child process. A later verdict covers the same evidence."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents import judge as judge_module
from otel_fr_collector.incidents.triggers import FAILED_PAUSE

from tests.support.played_job import Job
from tests.support.virtual_collector import VirtualCollector

HEALTHY = "ok\n"
FAILURES = "otel_fr_collector_internal_errors_total"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times. Even on virtual time, minutes of a job's reports take long."""
    monkeypatch.setattr(timeline, "FAILING_SECONDS", 8 * FAILED_PAUSE)


@pytest.fixture(params=["on the loop", "aside"])
def _place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose where verdicts are made."""
    if request.param == "aside":
        monkeypatch.setattr(judge_module, "MAX_SIZE_ON_LOOP", 0)


def broken(*_: Any) -> Any:
    raise RuntimeError("no verdict today")


@contextlib.contextmanager
def killed_while_broken(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill a rank of a healthy job. No verdict on it succeeds during the block."""
    job.step()
    job.all_reported()
    with monkeypatch.context() as patch:
        patch.setattr(judge_module, "diagnose", broken)
        job.ranks[1].exit(signal=signal.SIGSEGV)
        yield


def wait_for_failure(collector: VirtualCollector) -> None:
    """Wait until one more judgement has failed."""
    before = collector.metric(FAILURES, part="judge")
    assert collector.time.wait_for(lambda: collector.metric(FAILURES, part="judge") > before)


@pytest.mark.usefixtures("_place")
def test_a_bad_end_is_judged_once_that_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        with killed_while_broken(job, monkeypatch):
            collector.time.advance(4 * FAILED_PAUSE)
            assert collector.metric(FAILURES, part="judge") >= 2
            assert collector.lines() == []
        found = collector.wait_cause()
        assert (found["category"], found["culprit_ranks"]) == ("rank_dead", [1])


@pytest.mark.usefixtures("_place")
def test_a_job_that_could_not_be_judged_for_minutes_is_told_until_it_could_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualCollector() as collector, collector.job(2) as job:
        with killed_while_broken(job, monkeypatch):
            collector.time.advance(timeline.FAILING_SECONDS / 2)
            assert collector.get("/healthz") == HEALTHY
            collector.time.advance(timeline.FAILING_SECONDS)
            assert collector.get("/healthz").startswith("degraded: some jobs could not be judged")
        collector.wait_cause()
        assert collector.get("/healthz") == HEALTHY


def test_a_failure_now_and_then_is_no_lasting_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualCollector() as collector, collector.job(2) as job:
        job.step()
        job.all_reported()
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(judge_module, "diagnose", broken)
                call = job.ranks[0].issue(job.world)
                wait_for_failure(collector)
                assert collector.get("/healthz") == HEALTHY
                job.ranks[0].complete(call)
                job.all_reported()
            collector.time.advance(timeline.FAILING_SECONDS)


def test_what_a_judgement_was_to_cover_that_the_collectors_end_cancels_is_still_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the report of the end waits for the next collector."""
    monkeypatch.setattr(judge_module, "MAX_SIZE_ON_LOOP", 0)
    with VirtualCollector() as collector, collector.job(2) as job:
        job.step()
        job.all_reported()
        job.ranks[1].exit(signal=signal.SIGSEGV)
        judge, (run,) = collector.service.judge, collector.service.runs.by_id.values()

        async def end() -> None:
            judge.step(collector.time.monotonic() + timeline.BAD_END_SETTLE)
            await asyncio.sleep(0)
            assert (len(judge._aside), run.bad_end_since) == (1, None)
            await judge.finish(0.0)
            while judge._aside:
                await asyncio.sleep(0)

        collector.do(end())
        assert run.bad_end_since is not None
