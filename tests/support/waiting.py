"""How long tests wait for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_for(look: Callable[[], _T], seconds: float = 10.0) -> _T:
    """What ``look`` returns as soon as that is true; what it returns at the end of the time otherwise."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
