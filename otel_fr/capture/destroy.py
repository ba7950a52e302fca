"""What must be over before a process group is destroyed, on torch before 2.8.

There, Python holds the GIL while it destroys a ``ProcessGroup``, whose destructor waits for gloo's threads. A thread
that needs the GIL for a callback of ours would never end (https://github.com/pytorch/pytorch/pull/154976). So
``destroy_process_group`` waits first for the callbacks of the group's calls: as torch's destructor does, it waits for
these calls, but without the GIL. The compiled engine's callbacks need no GIL.

Imports nothing but the standard library: this is loaded with torch, also where nothing is recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_fr.capture.recorder import Recorder

FUNCTION: Final = "destroy_process_group"
_FIXED: Final = (2, 8)
WAIT_SECONDS: Final = 10.0
"""A group with calls that take longer, as when a peer has gone, is never destroyed."""
_POLL: Final = 0.01

Wrapper = Callable[..., Any]


def wrappers(c10d: ModuleType, recorder: Callable[[], Recorder | None]) -> dict[str, Wrapper]:
    """What takes the place of torch's function, by its name; empty: it need not be replaced in this torch.

    Args:
        recorder: that of the present recording; None: there is none.
    """
    original = getattr(c10d, FUNCTION, None)
    if not callable(original) or not keeps_gil(str(getattr(sys.modules.get("torch"), "__version__", ""))):
        return {}

    @wraps(original)
    def destroy_process_group(group: Any = None) -> Any:
        own = recorder()
        if own is not None:
            with contextlib.suppress(Exception):  # torch's own call must not see an error of ours
                _settle(c10d, own, group)
        return original(group)

    return {FUNCTION: destroy_process_group}


def keeps_gil(version: str) -> bool:
    """True if torch of this version holds the GIL in the destructor of a group, or is of a version unknown."""
    try:
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) < _FIXED
    except ValueError:
        return True


def _settle(c10d: ModuleType, recorder: Recorder, group: Any) -> None:
    """Wait for the callbacks of a group's calls; None: of all groups."""
    if not recorder.futures.outstanding():
        return
    from otel_fr.capture.groups import name_of

    default = c10d._world.default_pg
    every = group is None or group is default
    groups = [*c10d._world.pg_map] if every else [group]
    by_index = {ours.index: each for each in groups if (ours := recorder.groups.get(name_of(each))) is not None}
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting := recorder.futures.groups().intersection(by_index):
        if time.monotonic() >= deadline:
            for index in waiting:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(by_index[index]))
            return
        time.sleep(_POLL)
