"""The destruction of process groups, recorded as a call of the group, and what must be over before it.

``destroy_process_group`` may wait for long: for the threads of a backend, or for NCCL to abort what is in flight. Its
call is in flight until it returns. One that destroys all groups is a call of the default group.

On torch before 2.8, Python holds the GIL while it destroys a ``ProcessGroup``, whose destructor waits for gloo's
threads. A thread that needs the GIL for a callback of ours would never end
(https://github.com/pytorch/pytorch/pull/154976). So ``destroy_process_group`` waits first for the callbacks of the
group's calls: as torch's destructor does, it waits for these calls, but without the GIL. The compiled engine's
callbacks need no GIL.

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

DESTROY: Final = "destroy_process_group"
ABORT: Final = "abort_process_group"
_FIXED: Final = (2, 8)
WAIT_SECONDS: Final = 10.0
"""A group with calls that take longer, as when a peer has gone, is never destroyed."""
_POLL: Final = 0.01

Wrapper = Callable[..., Any]


def recorded(c10d: ModuleType, recorder: Callable[[], Recorder | None], operation: str, original: Wrapper) -> Wrapper:
    """What takes the place of torch's function.

    Args:
        recorder: the present recording's; None: there is none.
        operation: as which its calls are recorded.
    """
    settles = operation == DESTROY and keeps_gil(str(getattr(sys.modules.get("torch"), "__version__", "")))

    @wraps(original)
    def destroy(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        own = recorder()
        if own is None:
            return original(group, *args, **kwargs)
        begun = _begin(c10d, own, operation, group)
        if settles:
            with contextlib.suppress(Exception):  # torch's own call must not see an error of ours
                _settle(c10d, own, group)
        try:
            result = original(group, *args, **kwargs)
        except BaseException:
            _end(own, begun, has_failed=True)
            raise
        _end(own, begun, has_failed=False)
        return result

    return destroy


def _begin(c10d: ModuleType, recorder: Recorder, operation: str, group: Any) -> tuple[int, int] | None:
    """Returns what `_end` takes. None: torch will refuse, or the group is not recorded."""
    try:
        wanted = c10d._world.default_pg if group is None else group
        if not any(known is wanted for known in list(c10d._world.pg_map)):
            return None
        return recorder.begin_destruction(wanted, operation)
    except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
        recorder.failed()
        return None


def _end(recorder: Recorder, begun: tuple[int, int] | None, *, has_failed: bool) -> None:
    if begun is None:
        return
    try:
        from otel_fr.ring import RecordState

        state = RecordState.FAILED if has_failed else RecordState.COMPLETED
        recorder.end(*begun, 0, state, time.monotonic_ns())
    except Exception:  # noqa: BLE001 - as above
        recorder.failed()


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
