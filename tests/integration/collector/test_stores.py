"""Tests for both databases of the store: a SQLite file, and a real PostgreSQL server."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from otel_fr_collector.database_files import NewerVersionError
from otel_fr_collector.incidents.incident import FIRING, RESOLVED, Incident
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import postgres_migrations, sqlite_migrations
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.retention import Retention

from otel_fr.match import Ending, Place
from tests.support.stores import DirectPostgres, DirectSqlite
from tests.unit.collector.test_store import NOW, RUN, incident

AnyBackend = DirectSqlite | DirectPostgres
Open = Callable[..., AnyBackend]
"""Opens the test's database, like a collector at its start. ``retention``, ``metrics``: as in the backends."""
Migrate = Callable[[str], None]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def migrate(database: str, monkeypatch: pytest.MonkeyPatch) -> Migrate:
    """A function that adds a migration for the rest of the test."""

    def add(statements: str) -> None:
        own = sqlite_migrations if database == "sqlite" else postgres_migrations
        more = statements.replace("otel_fr.", "") if database == "sqlite" else statements
        monkeypatch.setattr(own, "MIGRATIONS", (*own.MIGRATIONS, more))

    return add


@pytest.fixture
def start(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[AnyBackend] = []
    url = request.getfixturevalue("postgres").new_database() if database == "postgresql" else ""

    def make(retention: Retention | None = None, metrics: Metrics | None = None, *, is_up: bool = True) -> AnyBackend:
        metrics = metrics or Metrics()
        if url:
            made: AnyBackend = DirectPostgres(url, "one", metrics, retention, wall=lambda: NOW)
        else:
            made = DirectSqlite(tmp_path, metrics, retention, wall=lambda: NOW)
        assert made.is_up is is_up
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close()


def numbers(store: AnyBackend, **query: object) -> list[int]:
    found = store.find(**{"job": None, "state": None, **query})  # type: ignore[arg-type]
    return [int(str(data["id"]), 16) for data in found]


def of_job(one: Incident, job: str) -> Incident:
    one.run = RunId(job, 0, f"run of {job}")
    one.data = one.as_data()
    return one


def test_a_new_collector_finds_all_that_the_one_before_has_written(start: Open) -> None:
    first = start()
    run = Run(RUN, 0.0, 0.0, world_size=2, resource={"service.name": "train"})
    run.ranks = {1: RankState(1, ended=50.0, ending=Ending.KILLED, place=Place("node"), stack="File a")}
    made = [incident(1, FIRING), incident(2, changed=NOW - 5), incident(3, FIRING, text='"quoted" \x00 \N{SNOWMAN}')]
    first.save(made, [run])
    first.note("webhook", {made[0].id: "1", made[1].id: "2"})
    first.note("webhook", {made[1].id: "3"})
    first.save_job(FinishedJob("key", "job", NOW, '{"job": "job"}', b""))
    first.close()
    second = start()
    saved = second.load(10)
    assert {one.id: (one.state, one.data) for one in saved.incidents} == {one.id: (one.state, one.data) for one in made}
    assert [(one.id, one.world_size, one.ranks(0.0, NOW)[0].stack) for one in saved.runs] == [(RUN, 2, "File a")]
    assert saved.notes == {("webhook", made[0].id): "1", ("webhook", made[1].id): "3"}
    assert second.get(made[2].id) == made[2].data
    assert second.finished_job("key") == FinishedJob("key", "job", NOW, '{"job": "job"}', b"")


def test_tables_of_an_older_version_are_brought_up_to_date_and_newer_ones_refused(
    start: Open, migrate: Migrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start()
    old.save([incident(1)])
    old.close()
    migrate("ALTER TABLE otel_fr.incidents ADD COLUMN more text NOT NULL DEFAULT 'no'")
    store = start()
    assert numbers(store) == [1]
    assert store._rows("SELECT more FROM otel_fr.incidents", {}) == [("no",)]
    store.close()
    monkeypatch.undo()
    with pytest.raises(NewerVersionError, match="newer otel-fr"):
        start()


def test_a_migration_that_fails_changes_nothing(start: Open, migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    old = start()
    old.save([incident(1)])
    old.close()
    migrate("CREATE TABLE otel_fr.more (x text); INSERT INTO otel_fr.nowhere VALUES (1)")
    store = start(is_up=False)
    store.save([incident(2)])  # held in memory
    store.close()
    monkeypatch.undo()
    assert numbers(start()) == [1]


def test_what_is_written_again_replaces_what_was_there(start: Open) -> None:
    store = start()
    run = Run(RUN, 0.0, 0.0, world_size=2)
    store.save([incident(1, FIRING)], [run])
    store.save([incident(1, RESOLVED, NOW + 1)])
    store.drop_run(RUN)
    store.save_job(FinishedJob("key", "job", NOW, '{"v": 1}', b""))
    store.save_job(FinishedJob("key", "job", NOW + 1, '{"v": 2}', b""))
    assert [data["state"] for data in store.find(job=None, state=None)] == [RESOLVED]
    assert store.load(10).runs == []
    assert [job.summary for job in store.finished(before=None)] == ['{"v": 2}']


def test_incidents_are_found_by_job_state_time_and_tenant(start: Open) -> None:
    store = start()
    store.save(
        [
            of_job(incident(1, FIRING, NOW + 1), "team-a/x"),
            of_job(incident(2, RESOLVED, NOW + 2), "team-a/y"),
            of_job(incident(3, FIRING, NOW + 3), "team-b/x"),
            of_job(incident(4, RESOLVED, NOW + 4), "team-a%"),
        ]
    )
    assert numbers(store) == [1, 2, 3, 4]
    assert numbers(store, job="team-a/x") == [1]
    assert numbers(store, state=FIRING) == [1, 3]
    assert numbers(store, before=NOW + 3) == [1, 2]
    assert numbers(store, prefix="team-a/") == [1, 2]
    assert numbers(store, prefix="team-_/") == []
    assert numbers(store, limit=2) == [3, 4]
    assert numbers(store, job="team-b/x", prefix="team-a/") == []
    assert numbers(store, max_size=1) == [4]
    assert store.get(f"{3:016x}", "team-a/") is None
    assert store.get(f"{3:016x}", "team-b/") is not None
    assert store.get("unknown' OR true --", "") is None


def test_finished_jobs_are_found_by_time_and_tenant_newest_first(start: Open) -> None:
    store = start()
    for number, job in enumerate(["a/1", "b/1", "a/2"]):
        store.save_job(FinishedJob(str(number), job, NOW + number, "{}", b""))
    assert [one.job for one in store.finished(before=None)] == ["a/2", "b/1", "a/1"]
    assert [one.job for one in store.finished(before=NOW + 2, prefix="a/")] == ["a/1"]
    assert [one.job for one in store.finished(before=None, limit=1)] == ["a/2"]
    assert store.finished_job("9") is None


def test_a_consequence_is_folded_if_its_cause_is_listed_and_counted_in_any_case(start: Open) -> None:
    store = start()
    made = [incident(n, RESOLVED if n == 1 else FIRING, NOW + n) for n in range(1, 5)]
    for of, cause in ((made[1], 1), (made[2], 9), (made[3], 1)):
        of.cause = f"{cause:016x}"
        of.data = of.as_data()
    store.save(made)
    assert numbers(store, folded=True) == [1, 3]
    assert numbers(store, state=FIRING, folded=True) == [2, 3, 4]
    assert store.count_consequences([one.data for one in made]) == [2, 0, 0, 0]
    assert store.count_consequences([]) == []
    assert store.consequences(made[0].data) == [made[1].id, made[3].id]


def test_resolved_incidents_and_jobs_go_by_age_and_open_incidents_stay(start: Open) -> None:
    store = start(Retention(seconds=3_600))
    store.save([incident(1, changed=NOW - 4_000), incident(2, FIRING, NOW - 9_000), incident(3, changed=NOW - 3_000)])
    store.note("hook", {f"{1:016x}": "1", f"{3:016x}": "1"})
    for key, ago in (("old", 4_000), ("new", 1)):
        store.save_job(FinishedJob(key, "job", NOW - ago, "{}", b""))
    store.prune()
    assert numbers(store) == [2, 3]
    assert list(store.load(10).notes) == [("hook", f"{3:016x}")]
    assert [job.key for job in store.finished(before=None)] == ["new"]


def test_where_the_room_is_used_up_the_oldest_go_jobs_first(start: Open) -> None:
    store = start(Retention(size=3 << 20))
    source = random.Random(1)
    for number in range(150):
        store.save_job(FinishedJob(str(number), "job", NOW + number, "{}", source.randbytes(30_000)))
    store.prune()
    kept = [job.key for job in store.finished(before=None)]
    assert kept == [str(number) for number in reversed(range(150 - len(kept), 150))]
    assert 50 < len(kept) < 120
    texts = ["".join(source.choices(string.ascii_letters, k=4_000)) for _ in range(600)]
    store.save([incident(0, FIRING, NOW - 9_000)])
    store.save([incident(n, changed=NOW + n, text=texts[n]) for n in range(1, 600)])
    store.prune()
    assert store.finished(before=None) == []
    left = numbers(store)
    assert left[0] == 0, "it is open"
    assert left[1:] == list(range(600 - len(left[1:]), 600))
    assert 50 < len(left) < 550


def test_what_cannot_be_read_is_left_out_and_counted(start: Open) -> None:
    metrics = Metrics()
    store = start(metrics=metrics)
    store.save([incident(1), incident(2)])
    store.save_job(FinishedJob("good", "job", NOW, "{}", b""))
    store.save_job(FinishedJob("bad", "job", NOW, "[]", b""))
    assert [job.key for job in store.finished(before=None)] == ["good"]
    assert store.finished_job("bad") is None
    assert metrics.errors.labels("store")._value.get() == 2


def test_open_incidents_are_loaded_before_any_number_of_resolved_ones(start: Open) -> None:
    store = start()
    store.save([incident(1, FIRING, NOW - 9_000), *(incident(n, changed=NOW + n) for n in range(2, 30))])
    assert [int(one.id, 16) for one in store.load(3).incidents] == [1, 28, 29]
