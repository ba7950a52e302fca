"""The event loop that the collector runs in: asyncio's, or uvloop's, which takes less time for each event."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

AUTO, ASYNCIO, UVLOOP = "auto", "asyncio", "uvloop"
KINDS = (AUTO, ASYNCIO, UVLOOP)
"""Which one: uvloop's if that is installed, asyncio's, uvloop's."""


def runner(kind: str) -> Callable[[Coroutine[Any, Any, _T]], _T]:
    """What runs a coroutine in a new loop until it is done.

    Args:
        kind: one of `KINDS`.

    Raises:
        ValueError: uvloop is asked for, and cannot be imported.
    """
    if kind != ASYNCIO:
        try:
            run: Callable[[Coroutine[Any, Any, _T]], _T] = importlib.import_module("uvloop").run
            return run
        except ImportError as error:
            if kind == UVLOOP:
                raise ValueError(f"--event-loop {UVLOOP}: {error}; install otel-fr[{UVLOOP}]") from error
    return asyncio.run
