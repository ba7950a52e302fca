"""Time as tests use it: the machine's, or virtual time that passes only when a test lets it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tests.support.waiting import PATIENCE, wait_for

_T = TypeVar("_T")

STEP = 0.1
"""Seconds of virtual time between two checks of a wait."""
VIRTUAL_PATIENCE = 60.0
"""Seconds of virtual time after which a wait fails."""
_ROUNDING = 1e-6


class Time(Protocol):
    """The clock that a played job and its tests use."""

    def monotonic(self) -> float: ...

    def wall(self) -> float:
        """Unix time in seconds."""

    def wait_for(self, look: Callable[[], _T]) -> _T:
        """Return the result of ``look`` once it is true, or its last result when the wait takes too long."""

    def every(self, period: float, work: Callable[[], None]) -> Callable[[], None]:
        """Call ``work`` every ``period`` seconds until the returned function is called."""


class RealTime:
    """The machine's time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def wait_for(self, look: Callable[[], _T]) -> _T:
        return wait_for(look)

    def every(self, period: float, work: Callable[[], None]) -> Callable[[], None]:
        """Run ``work`` in its own thread."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(period):
                work()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()

        def end() -> None:
            over.set()
            thread.join(PATIENCE)

        return end


@dataclass(order=True)
class _Repeated:
    due: float
    number: int
    period: float = field(compare=False)
    work: Callable[[], None] = field(compare=False)
    is_over: bool = field(default=False, compare=False)


class VirtualTime:
    """Time that passes only in `advance`, which does all that is due, one after the other."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._epoch = time.time() - self._now
        self._numbers = itertools.count()
        self._repeated: list[_Repeated] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._epoch + self._now

    def take(self, seconds: float) -> None:
        """Let the caller's work take so many seconds, in which nothing else happens."""
        self._now += seconds

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._repeated and self._repeated[0].due <= end + _ROUNDING:
            one = heapq.heappop(self._repeated)
            if one.is_over:
                continue
            self._now = max(self._now, one.due)
            one.due = self._now + one.period
            heapq.heappush(self._repeated, one)
            one.work()
        self._now = max(self._now, end)

    def wait_for(self, look: Callable[[], _T]) -> _T:
        end = self._now + VIRTUAL_PATIENCE
        while not (found := look()) and self._now < end:
            self.advance(STEP)
        return found

    def every(self, period: float, work: Callable[[], None]) -> Callable[[], None]:
        one = _Repeated(self._now + period, next(self._numbers), period, work)
        heapq.heappush(self._repeated, one)

        def end() -> None:
            one.is_over = True

        return end
