"""Waits of tests for other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

PATIENCE = float(os.environ.get("OTEL_FR_TEST_PATIENCE", "100"))
"""Seconds after which a wait fails.

Only a failing test waits so long. A busy machine is many times slower than an idle one. A test that limits a time
asserts that time instead.
"""
_POLL_SECONDS = 0.02


def wait_for(look: Callable[[], _T], seconds: float = PATIENCE) -> _T:
    """Return the result of ``look`` once it is true, or its last result after ``seconds``."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return found


def until(look: Callable[[], _T | None]) -> _T:
    """Like `wait_for`, but fail if it does not become true."""
    found = wait_for(look)
    assert found, "it did not happen in time"
    return found
