"""A time limit on what tasks await. All tasks share one timer: a timer for each would cost more than all the rest."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimits:
    """Limits of equal length on what tasks await. They all belong to one event loop.

    Args:
        seconds: the limit, after which a context's body is cancelled.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[_TimeLimit, float] = {}
        """When each limit ends, by the loop's clock. They end in the order in which they began."""
        self._timer: asyncio.TimerHandle | None = None

    def limited(self) -> _TimeLimit:
        """A context whose body is cancelled after the limit. A cancellation for another reason passes through.

        Raises:
            asyncio.TimeoutError: on leaving the context, if the time was over.
        """
        return _TimeLimit(self)

    def begin(self, limit: _TimeLimit) -> None:
        loop = asyncio.get_running_loop()
        end = self._ends[limit] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(end, self._check, loop)

    def end(self, limit: _TimeLimit) -> None:
        self._ends.pop(limit, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the bodies whose time is over, and set the timer for the oldest remaining limit."""
        now, self._timer = loop.time(), None
        while self._ends:
            limit, end = next(iter(self._ends.items()))
            if end > now:
                self._timer = loop.call_at(end, self._check, loop)
                break
            del self._ends[limit]
            limit.expire()


class _TimeLimit:
    __slots__ = ("_is_over", "_limits", "_task")

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._is_over = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._limits.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limits.end(self)
        self._task, task = None, self._task
        if self._is_over and kind is asyncio.CancelledError:
            take_back_cancellation(task)
            raise asyncio.TimeoutError from error

    def expire(self) -> None:
        if self._task is not None:
            self._is_over = True
            self._task.cancel()


def take_back_cancellation(task: asyncio.Task[object] | None) -> None:
    """Undo a cancellation: from Python 3.11 on, a task counts them, and the next await would be cancelled, too."""
    if task is not None and hasattr(task, "uncancel"):
        task.uncancel()
