"""Records the destruction of a process group as a call of the group, and first waits for otel-fr's callbacks.

``destroy_process_group`` may wait a long time: for the threads of a backend, or until NCCL has aborted calls in flight.
The recorded call is in flight until the function returns. Destroying all groups is a call of the default group.

On torch before 2.8, Python holds the GIL while it destroys a ``ProcessGroup``. The destructor waits for gloo's threads,
so a thread that needs the GIL for a callback of otel-fr would never end
(https://github.com/pytorch/pytorch/pull/154976). So the replaced ``destroy_process_group`` first waits, without the
GIL, for the callbacks of the group's calls. torch's destructor would wait for the same calls. The compiled engine's
callbacks need no GIL.

When imported, this module imports only the standard library: it is loaded with torch, even if nothing is recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_fr.capture.torch_version import release

if TYPE_CHECKING:
    from otel_fr.capture.recorder import Recorder

DESTROY: Final = "destroy_process_group"
ABORT: Final = "abort_process_group"
_FIXED: Final = (2, 8)
WAIT_SECONDS: Final = 10.0
"""Longest wait for a group's calls. If they take longer, as when a peer has ended, the group is never freed."""
_POLL: Final = 0.01

Wrapper = Callable[..., Any]


def recorded(c10d: ModuleType, recorder: Callable[[], Recorder | None], operation: str, original: Wrapper) -> Wrapper:
    """Return the replacement of torch's function.

    Args:
        recorder: returns the current recorder, or None.
        operation: name under which the calls are recorded.
    """
    settles = operation == DESTROY and keeps_gil()

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
    """Return what `_end` takes, or None if torch will refuse the call or the group is not recorded."""
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


def keeps_gil() -> bool:
    """Return True if this torch holds the GIL in the destructor of a group, or its version is unknown."""
    return release() < _FIXED


def _settle(c10d: ModuleType, recorder: Recorder, group: Any) -> None:
    """Wait for the callbacks of the calls of a group, or of all groups (None or the default group)."""
    if not recorder.futures.outstanding():
        return
    from otel_fr.capture.completion import keep_for_ever
    from otel_fr.capture.groups import name_of

    default = c10d._world.default_pg
    every = group is None or group is default
    groups = [*c10d._world.pg_map] if every else [group]
    by_index = {ours.index: each for each in groups if (ours := recorder.groups.get(name_of(each))) is not None}
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting := recorder.futures.groups().intersection(by_index):
        if time.monotonic() >= deadline:
            for index in waiting:
                keep_for_ever(by_index[index])
            return
        time.sleep(_POLL)
