"""Reports of ends that wait for a verdict: their bound, and a file that cannot be used for a time or is damaged."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import journal as journal_module
from otel_fr_collector.storage import reported_ends
from otel_fr_collector.storage.journal import Journal
from otel_fr_collector.storage.opening import open_ends
from otel_fr_collector.storage.reported_ends import FILE_NAME, ReportedEnds

from tests.support.waiting import PATIENCE

ONE, OTHER = RunId("train", 0, "a"), RunId('a "job"', 3, "b")
Loaded = list[tuple[RunId, bytes]]


def used(folder: Path, use: Callable[[ReportedEnds], Awaitable[None]] | None = None) -> Loaded:
    """Open the file, use it and close it; returns what it held."""

    async def play() -> Loaded:
        ends = open_ends(folder, Metrics())
        found = ends.load()
        if use is not None:
            await use(ends)
        await ends.close(PATIENCE)
        return found

    return asyncio.run(play())


async def keep(ends: ReportedEnds) -> None:
    await ends.keep([ONE], b"first")
    await ends.keep([ONE, OTHER], b"second")


def test_what_was_kept_is_there_until_it_is_let_go(tmp_path: Path) -> None:
    used(tmp_path, keep)

    async def let_go(ends: ReportedEnds) -> None:
        assert ends.runs() == [ONE, OTHER]
        ends.let_go([ONE])

    assert sorted(used(tmp_path, let_go)) == sorted([(ONE, b"first"), (ONE, b"second"), (OTHER, b"second")])
    assert used(tmp_path) == [(OTHER, b"second")]


def test_more_than_the_bound_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_ends, "MAX_BYTES", 12)

    async def fill(ends: ReportedEnds) -> None:
        await ends.keep([ONE], b"x" * 10)
        await ends.keep([OTHER], b"y" * 10)
        ends.let_go([ONE])
        await ends.keep([OTHER], b"z" * 10)

    used(tmp_path, fill)
    assert used(tmp_path) == [(OTHER, b"z" * 10)]


def test_what_waits_is_written_once_the_file_can_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY", 0.01)
    used(tmp_path)
    journal = Journal(tmp_path / FILE_NAME, Metrics(), "store")

    async def play() -> None:
        ends = ReportedEnds(journal)
        ends.load()
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await keep(ends)
            assert not journal.is_up
        while not journal.is_up:
            ends.step()
            await asyncio.sleep(0)
        await ends.keep([OTHER], b"third")
        await ends.close(PATIENCE)

    asyncio.run(asyncio.wait_for(play(), PATIENCE))
    assert sorted(data for _, data in used(tmp_path)) == [b"first", b"second", b"second", b"third"]


def test_what_could_not_be_read_at_the_start_is_not_taken_for_new_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "BUSY", 0.01)
    used(tmp_path, keep)

    async def play() -> None:
        ends = open_ends(tmp_path, Metrics())
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert ends.load() == []
        while not ends.runs():
            ends.step()
            await asyncio.sleep(0)
        ends.let_go(ends.runs())
        await ends.close(PATIENCE)

    asyncio.run(asyncio.wait_for(play(), 5.0))
    assert used(tmp_path) == []


def test_a_name_that_is_no_run_is_a_run_that_nobody_knows(tmp_path: Path) -> None:
    used(tmp_path, keep)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("UPDATE pending SET backend = '[1' WHERE request = (SELECT min(request) FROM pending)")
        db.commit()
    unknown = (RunId("[1", 0, "[1"), b"first")
    assert unknown in used(tmp_path)

    async def let_go(ends: ReportedEnds) -> None:
        ends.let_go(ends.runs())

    used(tmp_path, let_go)
    assert used(tmp_path) == [unknown]  # only its own name could remove it
