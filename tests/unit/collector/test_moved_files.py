"""Database files that are deleted, replaced, emptied or changed by somebody while the collector has them open."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from otel_fr_collector.forward import spool_file
from otel_fr_collector.forward.spool import Spool, SpoolError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import sqlite_backend

from tests.support.damaged_files import spoil_pages
from tests.support.otlp_messages import spans
from tests.support.stores import DirectSqlite
from tests.unit.collector.test_store import incident, numbers

BACKEND = "http://backend/v1/traces"


def _delete(path: Path) -> None:
    for one in path.parent.glob(path.name + "*"):
        one.unlink()


def _delete_only_the_database(path: Path) -> None:
    path.unlink()


def _delete_the_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def _delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def _rename(path: Path) -> None:
    path.rename(path.with_name("renamed"))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


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


MOVES: dict[str, Callable[[Path], None]] = {
    "deleted": _delete,
    "only the database deleted": _delete_only_the_database,
    "only the log deleted": _delete_the_log,
    "deleted with its folder": _delete_the_folder,
    "renamed": _rename,
    "emptied": _empty,
    "a folder": _become_a_folder,
    "its tables dropped": _drop_the_tables,
    "a link to a new file": _become_a_link_to_nowhere,
}
moves = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be used is tried again with the next operation."""
    monkeypatch.setattr(spool_file, "REOPEN", 0.0)
    monkeypatch.setattr(sqlite_backend, "RETRY", 0.0)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Spool]:
    queue = Spool(path, [BACKEND], 1 << 30)
    try:
        yield queue
    finally:
        queue.close()


async def waiting(queue: Spool) -> list[bytes]:
    return [item.data for item in await queue.head(BACKEND, 1_000)]


@moves
def test_the_store_goes_on_in_a_new_file(tmp_path: Path, move: Callable[[Path], None]) -> None:
    store = DirectSqlite(tmp_path / "data", Metrics())
    store.save([incident(1)])
    move(store.path)
    for now in (1.0, 2.0, 3.0):
        store.save([incident(2)])
        store.step(now)
        if store.take_new():  # the service saves again what it knows
            store.save([incident(1), incident(2)])
    assert store.is_up
    assert store.problem == ""
    assert {1, 2} <= set(numbers(store)) or move is _delete_the_log
    store.close()
    again = DirectSqlite(tmp_path / "data", Metrics())
    assert {1, 2} == set(numbers(again))
    again.close()


@moves
def test_the_queue_keeps_what_was_acknowledged(tmp_path: Path, move: Callable[[Path], None]) -> None:
    """What waits moves with the collector, except if its tables were dropped, which leaves nothing of it."""
    path = tmp_path / "data" / "forward.sqlite3"
    path.parent.mkdir()
    lost = move is _drop_the_tables

    async def play() -> None:
        with opened(path) as queue:
            await queue.put("traces", spans(1))
            first = (await queue.head(BACKEND, 1))[0]
            await queue.put("traces", spans(2))
            move(path)
            await queue.put("traces", spans(3))
            assert await waiting(queue) == ([] if lost else [spans(1), spans(2)]) + [spans(3)]
            assert queue.usage[BACKEND][0] == (1 if lost else 3)
            await queue.done(BACKEND, [first.id])  # the backend accepted it meanwhile
            assert queue.is_up
        with opened(path) as queue:
            assert await waiting(queue) == ([] if lost else [spans(2)]) + [spans(3)]

    asyncio.run(play())
    assert not list(path.parent.glob("*.kept*"))


def test_a_queue_that_takes_the_place_of_another_gets_what_waited_there(tmp_path: Path) -> None:
    """Under the numbers that a backend may be about to accept; the requests of the new file come after it."""
    path, other = tmp_path / "forward.sqlite3", tmp_path / "other.sqlite3"

    async def play() -> None:
        with opened(other) as queue:
            for number in (11, 12, 13):
                await queue.put("traces", spans(number))
        with opened(path) as queue:
            for number in (1, 2):
                await queue.put("traces", spans(number))
            held = await queue.head(BACKEND, 2)
            other.rename(path)
            await queue.done(BACKEND, [held[0].id])
            await queue.put("traces", spans(3))
            assert await waiting(queue) == [spans(number) for number in (2, 11, 12, 13, 3)]
            assert queue.usage[BACKEND][0] == 5

    asyncio.run(play())


def test_a_damaged_copy_of_what_waited_does_not_block_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "forward.sqlite3"

    async def play() -> None:
        with opened(path) as queue:
            await queue.put("traces", spans(1))
        kept = tmp_path / "forward.sqlite3.kept"
        shutil.copy(path, kept)
        spoil_pages(kept, 0)
        with opened(path) as queue:
            assert await waiting(queue) == [spans(1)]
        assert not kept.exists()
        assert list(tmp_path.glob("forward.sqlite3.kept.damaged-*"))

    asyncio.run(play())


def test_a_link_to_a_disk_that_is_not_there_is_used_once_it_is(tmp_path: Path) -> None:
    """The link is an operator's: it is not moved aside, and nothing is written elsewhere."""
    disk = tmp_path / "disk"
    path = tmp_path / "data" / "forward.sqlite3"
    path.parent.mkdir()
    path.symlink_to(disk / "forward.sqlite3")
    (path.parent / "incidents.db").symlink_to(disk / "incidents.db")

    async def play() -> None:
        store = DirectSqlite(path.parent, Metrics())
        store.save([incident(1)])
        assert "does not exist" in store.problem
        with opened(path) as queue:
            with pytest.raises(SpoolError, match="does not exist"):
                await queue.put("traces", spans(1))
            assert not queue.is_up
            disk.mkdir()
            await queue.put("traces", spans(1))
            assert queue.is_up
        store.step(float("inf"))
        assert store.is_up
        store.close()

    asyncio.run(play())
    assert (disk / "forward.sqlite3").exists()
    assert (disk / "incidents.db").exists()
    assert path.is_symlink()


def test_a_queue_that_another_process_holds_fails_all_that_waits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after the other, each after its own wait."""
    monkeypatch.setattr(spool_file, "BUSY", 1.0)
    path = tmp_path / "forward.sqlite3"

    async def play() -> None:
        with opened(path) as queue:
            await queue.settle()
            with contextlib.closing(sqlite3.connect(path)) as holder:
                holder.execute("BEGIN EXCLUSIVE")
                begun = time.monotonic()
                puts = (queue.put("traces", spans(number)) for number in range(50))
                found = await asyncio.gather(*puts, return_exceptions=True)
                assert {type(one) for one in found} == {SpoolError}
                assert time.monotonic() - begun < 25.0  # one after the other: 50 s
            await queue.put("traces", spans(1))
            assert await waiting(queue) == [spans(1)]

    asyncio.run(play())


def test_a_queue_that_another_process_holds_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_file, "BUSY", 600.0)
    path = tmp_path / "forward.sqlite3"

    async def play() -> None:
        with opened(path) as queue:
            await queue.settle()
            with contextlib.closing(sqlite3.connect(path)) as holder:
                holder.execute("BEGIN EXCLUSIVE")
                put = asyncio.ensure_future(queue.put("traces", spans(1)))
                await asyncio.sleep(0)
                await queue.stop(0.5)
                with pytest.raises(SpoolError, match="locked"):
                    await put
                with pytest.raises(SpoolError, match="closed"):
                    await queue.put("traces", spans(2))

    asyncio.run(play())


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
