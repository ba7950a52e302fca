"""Work in a child process, which sees this process's memory as it was."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from otel_fr_collector import aside as aside_module
from otel_fr_collector.aside import Aside, AsideError

from tests.support.waiting import PATIENCE


def run(work: Callable[[], Any]) -> Any:
    """Return the result of the work. Asserts that the process is gone, also after an error."""
    children: list[int] = []

    async def scene() -> Any:
        child = Aside(work)
        children.append(child._pid)
        return await child.result()

    try:
        return asyncio.run(scene())
    finally:
        assert not Path(f"/proc/{children[0]}").exists()


def test_it_sees_the_memory_as_it_was_when_the_work_began_and_changes_nothing_of_it() -> None:
    seen = [1]

    def work() -> list[int]:
        seen.append(2)
        return seen

    async def scene() -> list[int]:
        child = Aside(work)
        seen.append(3)
        return await child.result()

    assert asyncio.run(scene()) == [1, 2]
    assert seen == [1, 3]


def test_a_result_that_does_not_fit_into_a_pipe_arrives() -> None:
    assert run(lambda: list(range(1_000_000))) == list(range(1_000_000))


def test_what_it_raises_is_told_with_its_traceback() -> None:
    def broken() -> None:
        raise ValueError("no such rank")

    with pytest.raises(AsideError, match=r"in broken[\s\S]*ValueError: no such rank"):
        run(broken)


def test_a_result_that_cannot_be_pickled_and_a_process_that_dies_are_errors() -> None:
    with pytest.raises(AsideError, match="pickle"):
        run(lambda: lambda: None)
    with pytest.raises(AsideError, match="status -9"):
        run(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_process_that_dies_while_it_answers_is_an_error() -> None:
    async def scene() -> None:
        child = Aside(lambda: bytes(1 << 20))
        assert select.select([child._pipe], [], [], PATIENCE)[0]
        os.kill(child._pid, signal.SIGKILL)  # it waits for this process to read: no pipe holds so much
        await child.result()

    with pytest.raises(AsideError, match="status -9"):
        asyncio.run(scene())


def test_an_answer_for_which_there_is_no_memory_is_an_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def no_memory(*_: int) -> bytes:
        read.append(1)
        raise MemoryError

    async def scene() -> None:
        child = Aside(lambda: None)
        monkeypatch.setattr(os, "read", no_memory)
        await child.result()

    with pytest.raises(AsideError, match="MemoryError"):
        asyncio.run(scene())
    assert len(read) == 1


def test_what_fails_before_the_work_begins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "closerange", refused)
    with pytest.raises(AsideError, match="not permitted"):
        run(lambda: None)


def test_where_whoever_started_the_program_ignores_ends_of_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(lambda: 1) == 1
        with pytest.raises(AsideError, match="its process ended"):
            run(lambda: os.kill(os.getpid(), signal.SIGKILL))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_one_that_never_ends_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside_module, "SECONDS", 0.01)
    with pytest.raises(AsideError, match="longer than"):
        run(lambda: time.sleep(PATIENCE))


def test_one_that_is_not_waited_for_any_more_is_killed() -> None:
    async def scene() -> None:
        child = Aside(lambda: time.sleep(PATIENCE))
        task = asyncio.ensure_future(child.result())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not Path(f"/proc/{child._pid}").exists()

    asyncio.run(scene())


def test_its_end_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take long to end a process. Here it takes until the event loop has done something else."""
    waitpid, went_on = os.waitpid, threading.Event()

    async def scene() -> int:
        loop = asyncio.get_running_loop()

        def slow(pid: int, options: int) -> tuple[int, int]:
            loop.call_soon_threadsafe(went_on.set)
            assert went_on.wait(PATIENCE)
            return waitpid(pid, options)

        monkeypatch.setattr(os, "waitpid", slow)
        return await Aside(lambda: 1).result()

    assert asyncio.run(scene()) == 1


@contextlib.contextmanager
def file_limit(number: int) -> Iterator[None]:
    """Limit descriptors to numbers below ``number`` during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_are_closed_here_are_closed_for_their_peers() -> None:
    """Also a connection from before the limit of descriptors was lowered."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 800)

    async def scene() -> None:
        with file_limit(800):
            work = Aside(lambda: time.sleep(PATIENCE)).result()
        task = asyncio.ensure_future(work)
        ours.close()
        os.close(high)
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        task.cancel()

    asyncio.run(scene())


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", refused)
    with pytest.raises(OSError, match="temporarily unavailable"):
        Aside(lambda: None)
    assert set(os.listdir("/proc/self/fd")) <= before  # threads of other tests may close theirs
