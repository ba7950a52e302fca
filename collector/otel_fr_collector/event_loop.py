"""The event loop that the collector runs in: uvloop's if that is installed, which takes less time for each event."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine in a new loop until it is done."""
    runner: Callable[[Coroutine[Any, Any, object]], object] = asyncio.run
    with contextlib.suppress(ImportError):
        runner = importlib.import_module("uvloop").run
    runner(main)
