"""Database files that are deleted, replaced, emptied or changed by somebody while the collector has them open."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import sqlite_backend

from tests.support.stores import DirectSqlite
from tests.unit.collector.test_store import incident, numbers


def _delete(path: Path) -> None:
    for one in path.parent.glob(path.name + "*"):
        one.unlink()


def _become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _drop_the_tables(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if not name.startswith("sqlite_"):
                db.execute(f"DROP TABLE {name}")
        db.commit()


def _become_a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")


MOVES: dict[str, Callable[[Path], object]] = {
    "deleted": _delete,
    "only the database deleted": lambda path: path.unlink(),
    "only the log deleted": lambda path: path.with_name(path.name + "-wal").unlink(),
    "deleted with its folder": lambda path: shutil.rmtree(path.parent),
    "renamed": lambda path: path.rename(path.with_name("renamed")),
    "emptied": lambda path: path.write_bytes(b""),
    "a folder": _become_a_folder,
    "its tables dropped": _drop_the_tables,
    "a link to a new file": _become_a_link_to_nowhere,
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be used is tried again with the next operation."""
    monkeypatch.setattr(sqlite_backend, "RETRY", 0.0)


@pytest.mark.parametrize("name", MOVES)
def test_the_store_goes_on_in_a_new_file(tmp_path: Path, name: str) -> None:
    store = DirectSqlite(tmp_path / "data", Metrics())
    store.save([incident(1)])
    MOVES[name](store.path)
    for now in (1.0, 2.0, 3.0):
        store.save([incident(2)])
        store.step(now)
        if store.take_new():  # the service saves again what it knows
            store.save([incident(1), incident(2)])
    assert store.is_up
    assert store.problem == ""
    assert {1, 2} <= set(numbers(store)) or name == "only the log deleted"
    store.close()
    again = DirectSqlite(tmp_path / "data", Metrics())
    assert {1, 2} == set(numbers(again))
    again.close()


def test_a_link_to_a_disk_that_is_not_there_is_used_once_it_is(tmp_path: Path) -> None:
    """The link is an operator's: it is not moved aside, and nothing is written elsewhere."""
    disk, path = tmp_path / "disk", tmp_path / "data" / "incidents.db"
    path.parent.mkdir()
    path.symlink_to(disk / "incidents.db")
    store = DirectSqlite(path.parent, Metrics())
    store.save([incident(1)])
    assert "does not exist" in store.problem
    disk.mkdir()
    store.step(float("inf"))
    assert store.is_up
    store.close()
    assert (disk / "incidents.db").exists()
    assert path.is_symlink()


def test_the_store_takes_nothing_after_its_end(tmp_path: Path) -> None:
    """A note of what a thread has just sent may come then."""
    metrics = Metrics()
    store = DirectSqlite(tmp_path, metrics)
    store.close()
    store.note("trace", {"1": "x"})
    store.save([incident(1)])
    store.step(1.0)
    assert metrics.errors.labels("store")._value.get() == 0


def test_the_store_waits_for_another_process_when_it_ends(tmp_path: Path) -> None:
    store = DirectSqlite(tmp_path, Metrics())
    with contextlib.closing(sqlite3.connect(store.path, check_same_thread=False)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        store.save([incident(1)])
        assert "locked" in store.problem

        pauses = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            holder.rollback()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", pause)
            store.close(time.monotonic() + 60.0)
    assert len(pauses) == 1
    assert numbers(store) == [1]
