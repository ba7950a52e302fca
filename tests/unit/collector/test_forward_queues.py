"""The queues of the backends, their bounds, and the file under them: what is in it, and what happens without it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from otel_fr_collector.database_files import NewerVersionError
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import journal as journal_module
from otel_fr_collector.storage.journal import Journal

from tests.support.damaged_files import DAMAGES
from tests.support.otlp_messages import spans
from tests.support.waiting import PATIENCE

BACKENDS = ["grpc://one", "grpc://two"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "forward.sqlite3"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the file."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield


async def put(queues: Queues, *texts: bytes) -> None:
    for text in texts:
        written = queues.put("traces", text).written
        if written is not None:
            await written


def waiting(queues: Queues, backend: str = BACKENDS[0]) -> list[bytes]:
    return [request.data for request in queues.waiting[backend].values()]


def used(path: Path, use: Callable[[Queues], Awaitable[None]], metrics: Metrics | None = None) -> None:
    """Open the queues of that file, use them and close them."""

    async def play() -> None:
        queues = Queues(BACKENDS, 1 << 30, Journal(path, metrics or Metrics()))
        await use(queues)
        await queues.close(PATIENCE)

    asyncio.run(play())


def held(path: Path, backend: str = BACKENDS[0]) -> list[bytes]:
    """What the next collector finds in the file."""
    found: list[bytes] = []

    async def look(queues: Queues) -> None:
        found.extend(waiting(queues, backend))

    used(path, look)
    return found


def test_a_full_queue_takes_nothing_until_it_has_room_and_others_do() -> None:
    async def play() -> None:
        queues = Queues(BACKENDS, 1_000)
        first = queues.put("traces", b"x" * 600)
        assert (first.kept, first.full) == (BACKENDS, [])
        await queues.remove(BACKENDS[1], list(queues.waiting[BACKENDS[1]]))
        second = queues.put("traces", b"y" * 600)
        assert (second.kept, second.full) == (BACKENDS[1:], BACKENDS[:1])
        assert queues.sizes == {BACKENDS[0]: 600, BACKENDS[1]: 600}
        assert [len(queues.waiting[name]) for name in BACKENDS] == [1, 1]
        await queues.remove(BACKENDS[0], list(queues.waiting[BACKENDS[0]]))
        assert queues.put("traces", b"z" * 600).kept == BACKENDS[:1]

    asyncio.run(play())


def test_the_file_has_what_waits_for_each_backend_and_nothing_else(path: Path) -> None:
    async def use(queues: Queues) -> None:
        await asyncio.gather(*(put(queues, spans(number)) for number in range(1, 101)))
        numbers = list(queues.waiting[BACKENDS[0]])
        await queues.remove(BACKENDS[0], numbers[:40])
        await queues.remove(BACKENDS[1], numbers[20:])

    used(path, use)
    assert held(path) == [spans(number) for number in range(41, 101)]
    assert held(path, BACKENDS[1]) == [spans(number) for number in range(1, 21)]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM request").fetchone() == (80,)


def test_requests_of_a_backend_that_is_no_longer_asked_for_wait_until_they_are_too_old(path: Path) -> None:
    async def use(queues: Queues) -> None:
        await put(queues, spans(1))

    async def play() -> None:
        queues = Queues(BACKENDS[:1], 1 << 30, Journal(path, Metrics()))
        assert list(queues.sizes) == BACKENDS[:1]
        assert waiting(queues, BACKENDS[1]) == [spans(1)]
        assert await queues.drop_old(3_600.0) == {}
        assert await queues.drop_old(0.0) == {BACKENDS[0]: 1, BACKENDS[1]: 1}
        await queues.close(PATIENCE)

    used(path, use)
    asyncio.run(play())
    assert held(path, BACKENDS[1]) == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_moved_aside(path: Path, damage: Callable[[Path], None]) -> None:
    async def use(queues: Queues) -> None:
        assert queues.is_up
        await put(queues, spans(len(waiting(queues)) + 1))

    used(path, use)
    damage(path)
    metrics = Metrics()
    used(path, use, metrics)
    assert list(path.parent.glob("*.damaged-*"))
    assert metrics.errors.labels("forward")._value.get() == 1
    assert held(path) == [spans(1)]


def test_one_damaged_request_does_not_keep_the_others_from_being_sent(path: Path) -> None:
    async def use(queues: Queues) -> None:
        await put(queues, *(spans(number) for number in range(1, 7)))

    used(path, use)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        numbers = [row[0] for row in db.execute("SELECT id FROM request ORDER BY id")]
        db.execute("DELETE FROM request WHERE id = ?", numbers[:1])
        db.execute("UPDATE request SET data = 'text' WHERE id = ?", numbers[1:2])
        db.execute("UPDATE request SET signal = 'smoke' WHERE id = ?", numbers[2:3])
        db.execute("UPDATE request SET signal = NULL, data = NULL WHERE id = ?", numbers[3:4])
    assert held(path) == [spans(5), spans(6)]


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    async def use(queues: Queues) -> None:
        await put(queues, spans(1))

    used(path, use)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(NewerVersionError, match="newer otel-fr"):
        used(path, use)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_without_its_file_a_queue_goes_on_in_memory_says_so_once_and_returns_to_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "BUSY", 0.01)
    metrics = Metrics()

    async def use(queues: Queues) -> None:
        await put(queues, spans(1), spans(2))
        with locked(path):
            await asyncio.gather(*(put(queues, spans(number)) for number in range(3, 40)))
            assert not queues.is_up
            await queues.recover()
            await put(queues, spans(40))
            await queues.remove(BACKENDS[0], list(queues.waiting[BACKENDS[0]])[:1])
            assert not queues.is_up
        assert waiting(queues) == [spans(number) for number in range(2, 41)]
        await asyncio.gather(queues.recover(), put(queues, spans(41)))
        assert queues.is_up

    used(path, use, metrics)
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"]
    assert "keeping requests for the backends in memory only" in caplog.text
    assert metrics.errors.labels("forward")._value.get() == 1
    assert held(path) == [spans(number) for number in range(2, 42)]
    assert held(path, BACKENDS[1]) == [spans(number) for number in range(1, 42)]


def test_a_file_that_has_failed_is_begun_anew_once_all_is_sent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its disk has room again, although nothing could be deleted in it."""
    monkeypatch.setattr(journal_module, "BUSY", 0.01)

    async def use(queues: Queues) -> None:
        await put(queues, spans(1, size=1_000_000))
        with locked(path):
            await put(queues, spans(2))
            for backend in BACKENDS:
                await queues.remove(backend, list(queues.waiting[backend]))
            await queues.recover()
            assert queues.is_up
            assert path.stat().st_size < 100_000

    used(path, use)
    assert held(path) == []


def test_a_file_that_can_be_read_only_later_is_read_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY", 0.01)

    async def first(queues: Queues) -> None:
        await put(queues, spans(1))

    async def play() -> None:
        with locked(path):
            queues = Queues(BACKENDS, 1 << 30, Journal(path, Metrics()))
            await put(queues, spans(2))
            await queues.recover()
            assert waiting(queues) == [spans(2)]
        await queues.recover()
        assert sorted(waiting(queues)) == sorted([spans(1), spans(2)])
        await queues.close(PATIENCE)

    used(path, first)
    asyncio.run(play())
    assert held(path) == [spans(1), spans(2)]


def test_a_file_that_another_process_holds_ends_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY", PATIENCE)

    async def use(queues: Queues) -> None:
        with locked(path):
            written = queues.put("traces", spans(1)).written
            await queues.close(0.01)
            assert written is not None
            assert not written.done()
            assert queues.put("traces", spans(2)).written is None, "nothing is written after the end"
        await written

    used(path, use)
