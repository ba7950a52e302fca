"""Damaged files in the data folder: moved aside whole, replaced, never deleted, and never the end of the collector."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from otel_fr_collector import database_files
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import FIRING
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.persistence import Persistence
from otel_fr_collector.storage.sqlite_backend import SqliteBackend

from otel_fr.match import Ending, Place
from tests.support.damaged_files import DAMAGES, spoil_pages
from tests.support.stores import DirectSqlite, sqlite_store
from tests.unit.collector.test_store import NOW, RUN, incident, numbers

damages = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def as_it_is(folder: Path) -> dict[str, object]:
    """The content of a folder: bytes of files, the targets of links, and folders of the same."""
    content: dict[str, object] = {}
    for path in folder.iterdir():
        if path.is_symlink():
            content[path.name] = os.readlink(path)
        elif path.is_dir():
            content[path.name] = as_it_is(path)
        else:
            content[path.name] = path.read_bytes() if path.is_file() else "a pipe"
    return content


def kept_aside(folder: Path, name: str) -> dict[str, object]:
    """What was moved aside, by the names that it had before."""
    found = as_it_is(folder)
    aside = sorted(one for one in found if ".damaged-" in one)
    first = aside[0] if aside else ""
    return {name + one.removeprefix(first): found[one] for one in aside}


@damages
def test_a_damaged_store_is_moved_aside_unchanged(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = DirectSqlite(tmp_path, Metrics())
    store.save([incident(1)])
    store.close()
    damage(store.path)
    before = as_it_is(tmp_path)
    metrics = Metrics()
    again = DirectSqlite(tmp_path, metrics)
    assert again.is_up
    assert again.load(10).incidents == []
    again.save([incident(2)])
    assert numbers(again) == [2]
    again.close()
    kept = kept_aside(tmp_path, store.path.name)
    assert {name: kept.get(name) for name in before} == before
    assert metrics.errors.labels("store")._value.get() == 1


def _read_garbage(path: Path, db: sqlite3.Connection) -> None:
    path.write_bytes(b"this is no database" * 500)
    db.execute("SELECT * FROM one")


def _read_spoiled(path: Path, db: sqlite3.Connection) -> None:
    spoil_pages(path, 1)
    db.execute("SELECT * FROM one")


def _fill(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA max_page_count = 2")
    db.execute("INSERT INTO one VALUES (?)", ("x" * 100_000,))


def _write_read_only(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA query_only = 1")
    db.execute("INSERT INTO one VALUES (1)")


def _write_locked(path: Path, db: sqlite3.Connection) -> None:
    with contextlib.closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        db.execute("INSERT INTO one VALUES (1)")


def _read_missing(path: Path, db: sqlite3.Connection) -> None:
    db.execute("SELECT * FROM two")


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (_read_garbage, True),
        (_read_spoiled, True),
        (_fill, False),
        (_write_read_only, False),
        (_write_locked, False),
        (_read_missing, False),
    ],
)
def test_an_error_of_sqlite_tells_damage_from_what_may_pass(
    tmp_path: Path, fail: Callable[[Path, sqlite3.Connection], None], expected: bool
) -> None:
    path = tmp_path / "one.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE one (x)")
    with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as db, pytest.raises(sqlite3.Error) as error:
        fail(path, db)
    assert database_files.is_damage(error.value) is expected


def test_a_file_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Also if its tables are of a kind that this SQLite does not know, which it calls a malformed schema."""
    store = DirectSqlite(tmp_path, Metrics())
    store.save([incident(1)])
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        db.executescript("PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = sql || ' FROM_THE_FUTURE'")
        db.execute("PRAGMA user_version = 2")
    before = as_it_is(tmp_path)
    with pytest.raises(database_files.NewerVersionError, match="newer otel-fr"):
        DirectSqlite(tmp_path, Metrics())
    assert as_it_is(tmp_path) == before


@pytest.mark.parametrize("name", ["incidents.db", "incidents.db-wal"])
def test_files_that_this_user_may_not_write_are_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As after a restore by another user. Tests may run as root, who may write everything."""
    store = DirectSqlite(tmp_path, Metrics())
    store.save([incident(1)])
    store.close()
    (tmp_path / name).touch()
    access = os.access
    inode = (tmp_path / name).stat().st_ino
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and os.stat(path).st_ino != inode)
    store = DirectSqlite(tmp_path, Metrics())
    store.save([incident(2)])
    assert store.is_up
    assert numbers(store) == [2]
    store.close()
    assert sorted(kept_aside(tmp_path, "incidents.db")) == sorted({"incidents.db", name})


def test_so_many_damaged_files_are_kept_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the store continues in memory, until somebody has removed them."""
    monkeypatch.setattr(database_files, "MAX_ASIDE", 3)
    for _ in range(3):
        (tmp_path / "incidents.db").write_text("this is no database " * 100)
        store = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)  # in one second
        assert store.is_up
        store.close()
    assert len(list(tmp_path.glob("incidents.db.damaged-*"))) == 3
    (tmp_path / "incidents.db").write_text("the fourth")
    store = DirectSqlite(tmp_path, Metrics(), wall=lambda: NOW)
    store.save([incident(1)])
    assert not store.is_up
    assert (tmp_path / "incidents.db").read_text() == "the fourth"
    next(tmp_path.glob("incidents.db.damaged-*")).unlink()
    store.step(0.0)
    store.step(float("inf"))
    assert store.is_up
    assert numbers(store) == [1]
    store.close()


def test_a_full_disk_leaves_no_empty_file_that_would_count_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SqliteBackend, db: sqlite3.Connection) -> None:
        assert self.path.stat().st_size == 0
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "_prepare", fail)
        store = DirectSqlite(tmp_path, Metrics())
        store.save([incident(1)])
        assert not store.is_up
        assert list(tmp_path.iterdir()) == []
    store.step(float("inf"))
    assert store.is_up
    assert numbers(store) == [1]
    store.close()


def test_the_number_of_incidents_that_wait_for_the_disk_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "incidents.db").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_files, "MAX_ASIDE", 0)
        store = DirectSqlite(tmp_path, Metrics())
        store.save([incident(0, FIRING)])
        store.save([incident(number) for number in range(1, 3_000)])
        assert not store.is_up
    store.close()
    left = numbers(store)
    assert left[0] == 0
    assert left[1:] == list(range(2_001, 3_000))


def restored(folder: Path) -> int:
    """Start as the collector does; returns how many incidents it knows then."""
    store = sqlite_store(folder, wall=lambda: NOW)
    runs, book = Runs(), IncidentBook(lambda: NOW)
    resumed: list[object] = []
    persistence = Persistence(
        store, runs, book, ReturnGrace(0.0), resumed.extend, print, lambda: 0.0, lambda: NOW, lambda _: False
    )
    persistence.restore()
    for one in book.known():
        assert one.data["trace_id"] is None or len(bytes.fromhex(one.data["trace_id"])) == 16
        assert int(1_000 * (one.started or one.detected)) < 10**15
        json.dumps(one.as_data())
        for change in book.resolve_run(one.run, 1.0):
            store.save([change.incident])
    store.close()
    return len(resumed)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of open and resolved incidents and their run."""
    folder = tmp_path_factory.mktemp("sound")
    store = DirectSqlite(folder, Metrics(), wall=lambda: NOW)
    run = Run(RUN, 0.0, 0.0, world_size=2, resource={"service.name": "train"})
    run.ranks = {
        1: RankState(
            1, ended=50.0, ending=Ending.KILLED, place=Place("node"), stack="File a", progress={"g": [2, 1, 0]}
        )
    }
    store.save([incident(number, FIRING if number % 2 else "resolved") for number in range(8)], [run])
    store.note("webhook", {f"{number:016x}": "1" for number in range(8)})
    store.close()
    return store.path.read_bytes()


def test_no_content_of_the_file_keeps_the_collector_from_starting(tmp_path: Path, sound: bytes) -> None:
    """Bytes changed at random: SQLite has no checksums, so much of this is no damage to it."""
    source = random.Random(11)
    known = 0
    for number in range(100):
        data = bytearray(sound)
        for _ in range(source.choice([1, 3, 30])):
            at = source.randrange(len(data))
            data[at] = source.choice([data[at] ^ 1 << source.randrange(8), source.randrange(256), ord("9"), ord("e")])
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "incidents.db").write_bytes(data)
        known += restored(folder)
    assert known > 100


@pytest.mark.parametrize(
    ("column", "old", "new"),
    [
        ("memory", '"detected": 1800000000.0', '"detected": 18000000e99'),
        ("memory", '"detected": 1800000000.0', '"detected": NaN'),
        ("memory", '["job-7", 1,', '[["job-7"], 1,'),
        ("memory", '["job-7", 1,', '["job-7", "1",'),
        ("memory", '"state": "firing"', '"state": "hiring"'),
        ("memory", '"age": null', '"age": "old"'),
        ("memory", '"keys": [', '"keys": ' + "[" * 100_000),
        ("data", '"trace_id": null', '"trace_id": "not hex"'),
        ("data", '"revision": 0', '"revision": "0"'),
    ],
)
def test_an_incident_that_makes_no_sense_is_left_out(
    tmp_path: Path, sound: bytes, column: str, old: str, new: str
) -> None:
    path = tmp_path / "incidents.db"
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        changed = db.execute(
            f"UPDATE incidents SET {column} = replace({column}, ?, ?) WHERE id = ?", (old, new, f"{1:016x}")
        )
        assert changed.rowcount == 1
        assert new in db.execute(f"SELECT {column} FROM incidents WHERE id = ?", (f"{1:016x}",)).fetchone()[0]
    assert restored(tmp_path) == 7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"job-7", 1', '["job-7"], 1'),
        ('"host": "node"', '"host": 7'),
        ('"rank": 1', '"rank": "1"'),
        ("[2, 1]", "[2]"),
    ],
)
def test_a_run_that_makes_no_sense_is_left_out(tmp_path: Path, sound: bytes, old: str, new: str) -> None:
    path = tmp_path / "incidents.db"
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE runs SET memory = replace(memory, ?, ?)", (old, new))
        assert new in db.execute("SELECT memory FROM runs").fetchone()[0]
    assert restored(tmp_path) == 8
    store = DirectSqlite(tmp_path, Metrics())
    assert store.load(10).runs == []
    store.close()
