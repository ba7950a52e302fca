"""A time limit on what a task awaits, without a task of its own: `asyncio.timeout` as Python 3.11 has it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimit:
    """A context whose body is cancelled after so many seconds. A body that is cancelled for another reason stays so.

    Raises:
        asyncio.TimeoutError: on leaving the context; the time was over.
    """

    __slots__ = ("_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._task, task = None, self._task
        if self._is_over and kind is asyncio.CancelledError:
            take_back_cancellation(task)
            raise asyncio.TimeoutError from error

    def _end(self) -> None:
        if self._task is not None:
            self._is_over = True
            self._task.cancel()


def take_back_cancellation(task: asyncio.Task[object] | None) -> None:
    """From Python 3.11 on a task counts its cancellations; what it awaits next must not end because of this one."""
    if task is not None and hasattr(task, "uncancel"):
        task.uncancel()
