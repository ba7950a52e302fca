"""`otel_fr_collector.aside` without a process, for unit tests."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from otel_fr_collector.aside import AsideError


class InPlace:
    """Like `Aside`: the work sees the memory as it is now, its result is a copy, and the event loop has a turn first.

    Args:
        go: the result is there once this is set, so that a test can do something before; None: at once.
    """

    def __init__(self, work: Callable[[], Any], go: asyncio.Event | None = None) -> None:
        self._go = go
        self._problem = ""
        try:
            self._data = pickle.dumps(work())
        except Exception:  # noqa: BLE001  as `Aside` does
            self._problem = traceback.format_exc()

    async def result(self) -> Any:
        """Return the result of the work.

        Raises:
            AsideError: the work raised an exception.
        """
        await (asyncio.sleep(0) if self._go is None else self._go.wait())
        if self._problem:
            raise AsideError(self._problem)
        return pickle.loads(self._data)
