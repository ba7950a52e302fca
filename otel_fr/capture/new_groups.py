"""The creation of process groups, recorded as calls: ``new_group``, and whatever calls it (device meshes, subgroups).

All ranks of the default group must create groups in the same order, also those that do not become members, because
c10d names a group by how many were created before it. Each call is recorded before torch begins it, so a rank that
waits in it for others is seen to wait.

Not recorded are groups created with ``use_local_synchronization=True`` and by ``split_group``: only their members take
part, in an order of their own, and c10d names them by their ranks.

Imports nothing but the standard library: this is loaded with torch, also where nothing is recorded.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_fr.capture.recorder import Recorder

OUTER: Final = "_new_group_with_tag"
"""What ``new_group`` and torch's own callers of it call."""
INNER: Final = "_new_process_group_helper"
"""What creates the group, also the default one, once its name is known."""
OPERATION: Final = "new_group"
_READ: Final = ("global_ranks_in_group", "group_name", "group_desc", "timeout")
_UNDESCRIBED: Final = "undefined"
"""c10d's description of a group that was given none."""

_COMMUNICATION: Final = ("gloo", "onnect", "imed out", "imeout")
"""Parts of the texts of gloo's errors: of ranks that did not come, or that have gone."""

Wrapper = Callable[..., Any]


class _Here(threading.local):
    """What the current thread is doing.

    Attributes:
        wanted: a ``new_group`` that is to be recorded has not yet begun the creation. pending: ticket, and index of the
            default group, of the call that has.
    """

    wanted = False
    pending: tuple[int, int] | None = None


def wrappers(c10d: ModuleType, recorder: Callable[[], Recorder | None]) -> dict[str, Wrapper]:
    """What takes the place of torch's functions, by their names; empty: this torch creates groups in another way.

    Args:
        recorder: that of the present recording; None: there is none.
    """
    outer, inner = getattr(c10d, OUTER, None), getattr(c10d, INNER, None)
    if not callable(outer) or not callable(inner):
        return {}
    outer_signature, inner_signature = inspect.signature(outer), inspect.signature(inner)
    if not {*_READ} <= {*inner_signature.parameters}:
        return {}
    here = _Here()

    @wraps(outer)
    def create(*args: Any, **kwargs: Any) -> Any:
        if recorder() is None:
            return outer(*args, **kwargs)
        before = here.wanted, here.pending
        here.wanted, here.pending = _is_by_all(outer_signature, args, kwargs), None
        try:
            result = outer(*args, **kwargs)
        except BaseException as error:
            _end(recorder(), here.pending, error)
            raise
        else:
            _end(recorder(), here.pending, None)
            return result
        finally:
            here.wanted, here.pending = before

    @wraps(inner)
    def helper(*args: Any, **kwargs: Any) -> Any:
        own = recorder() if here.wanted else None
        if own is not None:
            here.wanted = False
            try:
                here.pending = _begin(c10d, own, inner_signature.bind(*args, **kwargs).arguments)
            except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
                own.failed()
        return inner(*args, **kwargs)

    return {OUTER: create, INNER: helper}


def _is_by_all(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if all ranks must make this call, in the same order."""
    try:
        return not signature.bind(*args, **kwargs).arguments.get("use_local_synchronization", False)
    except TypeError:
        return False  # torch will say so


def _begin(c10d: ModuleType, recorder: Recorder, given: dict[str, Any]) -> tuple[int, int] | None:
    from otel_fr.ring import NewGroup

    ranks = tuple(int(rank) for rank in given["global_ranks_in_group"])
    default = c10d._world.default_pg
    if not ranks or default is None:
        return None
    description = given.get("group_desc")
    timeout = given.get("timeout")
    return recorder.begin_group(
        default.group_name,
        OPERATION,
        NewGroup(
            name=str(given["group_name"]),
            description=_UNDESCRIBED if description is None else str(description),
            ranks=ranks,
            awaits_all=_awaits_all(c10d, default),
        ),
        round(timeout / timedelta(milliseconds=1)) if isinstance(timeout, timedelta) else 0,
    )


def _awaits_all(c10d: ModuleType, default: Any) -> bool:
    """True if also the ranks that do not become members are waited for.

    So it is with torch's barrier after the creation (``TORCH_DIST_INIT_BARRIER=1``), and where a communicator is split
    from the default group's, which is done if that is bound to a device.
    """
    has_barrier = getattr(c10d, "_is_barrier_after_init", None)
    return (has_barrier is not None and has_barrier() == 1) or getattr(default, "bound_device_id", None) is not None


def _has_failed(error: BaseException | None) -> bool:
    """True if the call ended by other ranks' fault, or while it waited for them (by a signal, for example).

    Wrong arguments, or a backend that torch was built without, fail at once in each rank that passes them, and no rank
    waits for them: such a call is over, and does not count as failed.
    """
    if error is None or not isinstance(error, Exception):
        return error is not None
    names = {base.__name__ for base in type(error).__mro__}
    if "DistError" in names:
        return True
    # gloo raises plain RuntimeErrors.
    return "RuntimeError" in names and any(word in str(error) for word in _COMMUNICATION)


def _end(recorder: Recorder | None, pending: tuple[int, int] | None, error: BaseException | None) -> None:
    if recorder is None or pending is None:
        return
    try:
        from otel_fr.ring import RecordState

        state = RecordState.FAILED if _has_failed(error) else RecordState.COMPLETED
        recorder.end(pending[0], pending[1], 0, state, time.monotonic_ns())
    except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
        recorder.failed()
