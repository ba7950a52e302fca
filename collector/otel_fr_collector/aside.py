"""Runs work in a child process, which sees this process's memory as it was at the fork, and can use another core.

The state of a large run changes with each request, and copying 100,000 ranks takes a second. A child needs no copy: the
system copies the pages that change while it works. It blocks neither the event loop nor the interpreter of the process
that takes requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast

from otel_fr.helper_process import end_with

SECONDS = 120.0
"""Seconds after which a child is killed. 100,000 ranks take a few. A child hangs if it needs a lock that another thread
held at the fork."""
PART = 1 << 16
"""Bytes of an answer that are read at once: the capacity of a pipe."""
_FIRST_TO_KILL = "1000"
"""Value of oom_score_adj (proc(5)): if memory runs out, the child is killed, not the process that takes requests."""

_T = TypeVar("_T")


class AsideError(Exception):
    """The work failed, or its process did. The text is the traceback or the reason."""


class Aside(Generic[_T]):
    """One piece of work in a child process, which starts when this object is created.

    Args:
        work: must use memory only: no thread, lock, file or connection of this process. Its result must be picklable.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        self._pipe, writing = os.pipe()
        program = os.getpid()
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _serve(work, writing, program)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writing)

    async def result(self) -> _T:
        """Wait for the result of the work. If this is cancelled, the child is killed.

        Raises:
            AsideError: the work raised an exception, its process ended early, or it took `SECONDS`.
        """
        try:
            data = await _read(self._pipe)
        finally:
            os.close(self._pipe)
            status = await self._end()
        try:
            is_done, result = pickle.loads(data)  # noqa: S301  written by our own program
        except (EOFError, pickle.UnpicklingError) as error:  # the child wrote nothing, or a part
            raise AsideError(f"its process ended with status {status}") from error
        if not is_done:
            raise AsideError(result)
        return cast("_T", result)

    async def _end(self) -> int:
        """Kill the child, which has answered or is no longer needed; returns its exit status.

        A thread waits for its end, even if this is cancelled: the system may take seconds to free much memory.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        try:
            _, status = await asyncio.to_thread(os.waitpid, self._pid, 0)
            return os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # the program was started with SIGCHLD ignored
            return 0


async def _read(pipe: int) -> bytes:
    """Read all that is written into a pipe.

    Raises:
        AsideError: it was not closed within `SECONDS`, or there is no memory to read it.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    parts: list[bytes] = []

    def read() -> None:
        try:
            part = os.read(pipe, PART)
        except (OSError, MemoryError) as error:  # otherwise `read` would be called again at once
            loop.remove_reader(pipe)
            ended.set_exception(error)
            return
        if part:
            parts.append(part)
        elif not ended.done():
            ended.set_result(None)

    loop.add_reader(pipe, read)
    try:
        done, _ = await asyncio.wait({ended}, timeout=SECONDS)
    finally:
        loop.remove_reader(pipe)
    if not done:
        raise AsideError(f"it took longer than {SECONDS:.0f} s")
    if (error := ended.exception()) is not None:
        raise AsideError(f"its answer cannot be read: {error!r}")
    return b"".join(parts)


def _serve(work: Callable[[], Any], writing: int, program: int) -> NoReturn:
    """Do the work in the child, and exit."""
    try:
        try:
            _leave(writing, program)
            data = pickle.dumps((True, work()), pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001  it is raised where it is waited for
            data = pickle.dumps((False, traceback.format_exc()))
        with open(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _leave(writing: int, program: int) -> None:
    """Give up what this child has inherited, except memory, standard output and standard error."""
    gc.disable()  # it would touch, and so copy, all memory
    if not end_with(program):
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the process group may get one: only the program handles it
    # A connection that the program closes must not stay open here. Closing up to the limit of descriptors would not do:
    # the limit may have been lowered, and if it is a thousand million, an older system takes minutes.
    last = max(map(int, os.listdir("/dev/fd")))
    os.closerange(3, writing)
    os.closerange(writing + 1, last + 1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL, "ascii")
