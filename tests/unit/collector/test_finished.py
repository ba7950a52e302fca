"""Jobs that are over: kept with their ranks, for those who may see them, over restarts, and for the retention time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import pytest
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.runs import MAX_RUNS
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import EVERYTHING, Access
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_backend import FILE_NAME
from otel_fr_collector.storage.store import Store
from otel_fr_collector.web import finished
from otel_fr_collector.web.finished import Finished
from otel_fr_collector.web.job_views import job_key

from otel_fr.match import Ending, Group
from tests.support.stores import sqlite_store
from tests.support.waiting import wait_for

WALL = 1_800_000_000.0


def ended_run(name: str, ranks: int = 2, ago: float = 100.0) -> Run:
    now = time.monotonic() - ago
    run = Run(RunId(name, 0, f"run-{name}"), now, now, world_size=ranks)
    for rank in range(ranks):
        run.rank_state(rank)
    return run


def keep(store: Store | None, *runs: Run) -> Finished:
    """A collector's finished jobs after these runs were dropped, in this order."""
    metrics = Metrics()
    service = Service(metrics, Outlets(metrics), wall=lambda: WALL, store=store)
    kept = Finished(service)

    async def play() -> None:
        task = asyncio.create_task(kept.run())
        for run in runs:
            service.on_dropped(run)
        await kept.all_kept()
        task.cancel()

    asyncio.run(play())
    assert metrics.errors.labels("housekeeping")._value.get() == 0
    if store is not None:
        store.settled(60.0)
    return kept


def names(kept: Finished, access: Access = EVERYTHING, before: float | None = None, limit: int = 10) -> list[object]:
    return [job["job"] for job in asyncio.run(kept.jobs(access, before, limit))]


@pytest.mark.parametrize("has_store", [True, False])
def test_finished_jobs_are_listed_newest_first_to_those_who_may_see_them(tmp_path: Path, has_store: bool) -> None:
    store = sqlite_store(tmp_path) if has_store else None
    kept = keep(store, ended_run("a/1", ago=300), ended_run("b/1", ago=200), ended_run("a/2", ago=100))
    assert names(kept) == ["a/2", "b/1", "a/1"]
    assert names(kept, limit=1) == ["a/2"]
    assert names(kept, before=WALL - 150) == ["b/1", "a/1"]
    own = Access(read=True, write=False, prefix="a/")
    assert names(kept, own) == ["a/2", "a/1"]
    key = job_key(RunId("b/1", 0, "run-b/1"))
    found = asyncio.run(kept.job(key, EVERYTHING))
    assert found is not None
    assert json.loads(found)["ranks"]["rank"] == [0, 1]
    assert asyncio.run(kept.job(key, own)) is None
    assert asyncio.run(kept.job("unknown", EVERYTHING)) is None


def test_without_a_store_the_order_is_that_of_the_ends_and_a_run_is_listed_once() -> None:
    """A failed run is dropped an hour after its end, a clean one after a minute. A run that was dropped may return."""
    before, after = ended_run("back", ago=500), ended_run("back", ranks=4, ago=50)
    after.group_state(Group("0:world", "0", "default_pg", (0, 1, 2, 3)), 4)
    kept = keep(None, before, ended_run("clean", ago=100), ended_run("failed", ago=300), after)
    assert names(kept) == ["back", "clean", "failed"]
    found = asyncio.run(kept.job(job_key(after.id), EVERYTHING))
    assert found is not None
    assert json.loads(found)["world_size"] == 4


def test_all_runs_may_end_at_once() -> None:
    service = Service(metrics := Metrics(), Outlets(metrics))
    kept = Finished(service)
    for number in range(MAX_RUNS):
        service.on_dropped(Run(RunId(str(number), 0, "r"), 0.0, 0.0))
    assert kept._waiting.qsize() == MAX_RUNS


def test_of_many_running_jobs_each_is_shown_to_other_collectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "SHOWN_AT_ONCE", 1)
    store = sqlite_store(tmp_path)
    service = Service(Metrics(), Outlets(Metrics()), wall=lambda: WALL, store=store)
    kept = Finished(service)
    runs = [ended_run(str(number), ago=0.0) for number in range(int(finished.SHOW_SECONDS) + 2)]
    service.runs.by_id.update({run.id: run for run in runs})
    for second in range(len(runs)):
        asyncio.run(kept._show(runs[0].last_seen - len(runs) + second))
    store.settled(60.0)
    assert len(store.finished(before=None)) == len(runs)
    store.close()


def test_they_outlive_the_collector_and_end_with_the_retention(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    keep(store, ended_run("old", ago=5_000), ended_run("new", ago=100))
    store.close()
    again = sqlite_store(tmp_path)
    assert names(keep(again)) == ["new", "old"]
    again.close()
    bounded = sqlite_store(tmp_path, retention=Retention(seconds=1_000), wall=lambda: WALL)
    kept = keep(bounded, ended_run("newest", ago=1))
    assert wait_for(lambda: names(kept) == ["newest", "new"])
    bounded.close()


def test_a_job_that_is_over_is_kept_before_it_is_dropped_and_listed_after(tmp_path: Path) -> None:
    """A collector that is killed in between, an hour for a job that failed, has not forgotten it."""
    store = sqlite_store(tmp_path)
    run = ended_run("job")
    now = run.last_seen + 3.5
    service = Service(Metrics(), Outlets(Metrics()), lambda: now, lambda: WALL, store=store)
    kept = Finished(service)
    for state in run.ranks.values():
        state.ended, state.ending = run.last_seen, Ending.KILLED
    service.runs.by_id[run.id] = run
    counts, over = [], []
    keep_over = service.on_over

    def note(gone: Run) -> None:
        over.append(gone.id)
        keep_over(gone)

    service.on_over = note

    async def play() -> None:
        nonlocal now
        task = asyncio.create_task(kept.run())
        for _ in range(4):
            service.step()
            await kept.all_kept()
            store.settled(60.0)
            counts.append(len(store.finished(before=None)))
            now += 2.0
        task.cancel()

    asyncio.run(play())
    assert counts == [0, 1, 1, 1]
    assert over == [run.id], "it is not kept again each second"
    assert names(kept) == []
    store.close()
    again = keep(sqlite_store(tmp_path))
    assert names(again) == ["job"]
    (found,) = asyncio.run(again.jobs(EVERYTHING, None, 1))
    assert found["state"] == "failed"


def test_what_was_known_of_a_job_is_not_replaced_by_what_a_restart_has_left(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    key = job_key(RunId("job", 0, "run-job"))
    whole = ended_run("job", ranks=3)
    whole.group_state(Group("g", "0", "default_pg", (0, 1, 2)), 1)
    keep(store, whole)
    restored = ended_run("job", ranks=1, ago=50.0)
    kept = keep(store, restored)
    found = asyncio.run(kept.job(key, EVERYTHING))
    assert found is not None
    assert json.loads(found)["ranks"]["rank"] == [0, 1, 2]
    store.close()


def test_of_a_job_that_is_too_large_its_line_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "MAX_DETAIL", 10)
    kept = keep(None, ended_run("huge"))
    found = asyncio.run(kept.job(job_key(RunId("huge", 0, "run-huge")), EVERYTHING))
    assert found is not None
    assert "lanes" not in json.loads(found)
    assert json.loads(found)["job"] == "huge"


def test_a_damaged_job_does_not_cost_the_others(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    keep(store, ended_run("cut"), ended_run("no object"), ended_run("packed"), ended_run("whole"))
    store.close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    with db:
        db.execute("UPDATE jobs SET summary = substr(summary, 1, 20) WHERE job = 'cut'")
        db.execute("UPDATE jobs SET summary = '[]' WHERE job = 'no object'")
        db.execute("UPDATE jobs SET detail = substr(detail, 1, 20) WHERE job = 'packed'")
    db.close()
    metrics = Metrics()
    kept = keep(sqlite_store(tmp_path, metrics))
    assert sorted(map(str, names(kept))) == ["packed", "whole"]
    assert metrics.errors.labels("store")._value.get() == 2
    assert asyncio.run(kept.job(job_key(RunId("packed", 0, "run-packed")), EVERYTHING)) is None
    assert asyncio.run(kept.job(job_key(RunId("whole", 0, "run-whole")), EVERYTHING)) is not None
