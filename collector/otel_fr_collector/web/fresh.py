"""Answers that are made once for all clients that ask at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

FRESH = 1.0
"""Seconds for which an answer is reused at least."""
SHARE = 10
"""An answer is reused for this many times as long as it took to make. Up to `LONGEST`, that is a tenth of a core."""
LONGEST = 5.0
"""Seconds for which an answer is reused at most."""
KEPT = 60.0
"""Seconds without a request after which an answer is dropped."""


class _Made(NamedTuple):
    """An answer, and until when it is fresh (monotonic)."""

    until: float
    answer: object


class Fresh:
    """The latest answers, by key.

    Args:
        clock: returns monotonic time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._made: dict[str, _Made] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer, and make it first unless it is fresh. ``key`` names the answer and implies its type."""
        async with self._making.setdefault(key, asyncio.Lock()):
            now = self._clock()
            known = self._made.get(key)
            if known is None or now >= known.until:
                answer: object = await make()
                made = self._clock()
                known = self._made[key] = _Made(made + max(FRESH, min(LONGEST, SHARE * (made - now))), answer)
        for old in [name for name, one in self._made.items() if now - one.until > KEPT]:
            del self._made[old]
            self._making.pop(old, None)
        return known.answer  # type: ignore[return-value]  # a key tells the type, too
