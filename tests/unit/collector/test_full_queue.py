"""The file of the queues on a disk without room, for which limits of the file stand in."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from otel_fr_collector.forward import spool_file
from otel_fr_collector.forward.spool import Spool, SpoolError

from tests.support.otlp_messages import spans

BACKEND = "http://backend/v1/traces"


def test_a_file_that_was_emptied_gives_its_room_back(tmp_path: Path) -> None:
    """Also the log, except for the room in which requests can be removed."""
    path = tmp_path / "forward.sqlite3"

    async def play() -> None:
        queue = Spool(path, [BACKEND], 1 << 30)
        for number in range(1, 101):
            await queue.put("traces", spans(number, size=100_000))
        held = await queue.head(BACKEND, 1_000)
        assert len(held) == 100
        await queue.done(BACKEND, {item.id for item in held})
        assert path.stat().st_size > 5_000_000
        await queue.drop_old(3_600.0)
        await queue.settle()
        assert path.stat().st_size < 200_000
        assert path.with_name(path.name + "-wal").stat().st_size <= 2 * spool_file.LOG_BYTES
        queue.close()

    asyncio.run(play())


def test_nothing_is_taken_that_the_file_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the log has room for it; what is taken can be removed, and makes room for others."""
    path = tmp_path / "forward.sqlite3"
    allocate = spool_file._allocate

    def limited(descriptor: int, size: int) -> None:
        if size > 2_000_000:
            raise OSError(28, "No space left on device")
        allocate(descriptor, size)

    monkeypatch.setattr(spool_file, "_allocate", limited)

    async def play() -> None:
        queue = Spool(path, [BACKEND], 1 << 30)
        for turn in range(3):
            puts = [queue.put("traces", spans(1_000 * turn + number, size=100_000)) for number in range(1, 41)]
            found = await asyncio.gather(*puts, return_exceptions=True)
            refused = [one for one in found if isinstance(one, SpoolError)]
            assert 15 <= len(found) - len(refused) < 25
            assert "No space left" in str(refused[-1])
            held = await queue.head(BACKEND, 1_000)
            assert len(held) == len(found) - len(refused)
            await queue.done(BACKEND, {item.id for item in held})
            assert queue.is_up
        queue.close()

    asyncio.run(play())


def test_a_queue_that_is_all_sent_and_cannot_be_written_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version leaves one whose log has filled the disk. Numbers are not used twice, retries are known."""
    path = tmp_path / "forward.sqlite3"
    commit = spool_file.SpoolFile.commit

    async def play() -> None:
        queue = Spool(path, [BACKEND], 1 << 30)
        for number in (1, 2):
            await queue.put("traces", spans(number))
        held = await queue.head(BACKEND, 10)
        old = path.stat().st_ino

        def refuse(file: spool_file.SpoolFile, db: sqlite3.Connection) -> None:
            if path.stat().st_ino == old and db.total_changes > written[0]:
                written[0] = db.total_changes
                raise sqlite3.OperationalError("database or disk is full")
            commit(file, db)

        connection = queue._file.connection
        assert connection is not None
        written = [connection.total_changes]
        keep = path.with_name("keep")
        keep.hardlink_to(path)  # so that the new file has another number
        monkeypatch.setattr(spool_file.SpoolFile, "commit", refuse)
        with pytest.raises(SpoolError, match="disk is full"):
            await queue.done(BACKEND, [held[0].id])
        assert [item.id for item in await queue.head(BACKEND, 10)] == [item.id for item in held]
        await queue.done(BACKEND, [item.id for item in held])
        assert path.stat().st_ino != old
        monkeypatch.undo()
        assert (await queue.put("traces", spans(1))).repeated
        await queue.put("traces", spans(3))
        (after,) = await queue.head(BACKEND, 10)
        assert after.data == spans(3)
        assert after.id > held[-1].id
        assert queue.usage[BACKEND][0] == 1
        queue.close()

    asyncio.run(play())
