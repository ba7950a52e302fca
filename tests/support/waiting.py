"""How long tests wait for what other processes do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

PATIENCE = float(os.environ.get("OTEL_FR_TEST_PATIENCE", "100"))
"""Seconds after which something that was to happen counts as not happening.

Only a failing test waits so long. It is many times what anything takes on an idle machine, for a busy one is slower by
that much; what must happen within a certain time is asserted with that time.
"""
_POLL_SECONDS = 0.02


def wait_for(look: Callable[[], _T], seconds: float = PATIENCE) -> _T:
    """What ``look`` returns as soon as that is true; what it returns at the end of the time otherwise."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return found


def until(look: Callable[[], _T | None]) -> _T:
    """As `wait_for`, but fails if it does not become true."""
    found = wait_for(look)
    assert found, "it did not happen in time"
    return found
