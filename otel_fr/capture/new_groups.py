"""Records the creation of process groups as calls: ``new_group``, and what calls it (device meshes, subgroups).

All ranks of the default group must create groups in the same order, even if they do not become members, because c10d
names a group by the number of groups created before it. A call is recorded before torch begins it, so a rank that
waits in it for others is shown as waiting.

Only its members create a group with ``use_local_synchronization=True``, in an order of their own, and c10d names the
group by its ranks. The creation is recorded as the first call of the new group. The same holds for ``split_group``:
only the members create each group.

It also holds for the default group if a program has destroyed it and calls ``init_process_group`` again. This call is
the last call of the earlier run: ranks that do not make it never become ranks of the next run. A process's first
``init_process_group`` is not recorded, because recording begins with the group that it creates.

When imported, this module imports nothing of otel-fr except `replaced`: it is loaded with torch, even if nothing is
recorded.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from otel_fr.capture.replaced import Attribute

if TYPE_CHECKING:
    from otel_fr.capture.recorder import Recorder
    from otel_fr.ring import NewGroup

OPERATION: Final = "new_group"
SPLIT: Final = "split_group"
INIT: Final = "init_process_group"
_READ: Final = ("backend", "global_ranks_in_group", "group_name", "group_desc", "timeout")
_UNDESCRIBED: Final = "undefined"
"""c10d's description of a group that was created without one."""

Wrapper = Callable[..., Any]


class _Begun(NamedTuple):
    """A creation that is recorded.

    Attributes:
        ticket, group_index: arguments of `GroupRecorder.end`.
        members_group: name of a group that only its members create; "": all ranks create it.
    """

    ticket: int
    group_index: int
    members_group: str = ""


class _Here(threading.local):
    """The call of ``new_group`` that the current thread is in.

    Attributes:
        creators: which ranks take part, until the creation begins; None: there is nothing to record.
        begun: the creation, once it has begun.
    """

    creators: Literal["all", "members"] | None = None
    begun: _Begun | None = None


class Creations:
    """Replaces torch's two functions that create a group: `outer` calls `inner`.

    Args:
        recorder: returns the current recorder, or None.
        comes_again: returns True if the run has the given world size and this process has destroyed all its groups.
        before: called before any process group is created, including the default group. Must not raise.
    """

    def __init__(
        self,
        c10d: ModuleType,
        recorder: Callable[[], Recorder | None],
        comes_again: Callable[[int], bool],
        before: Callable[[], None],
    ) -> None:
        self._c10d = c10d
        self._recorder = recorder
        self._comes_again = comes_again
        self._before = before
        self._here = _Here()

    @staticmethod
    def are_known(c10d: ModuleType) -> bool:
        """Return False if this torch creates groups in another way."""
        outer, inner = (getattr(c10d, one.path, None) for one in (Attribute.NEW_GROUP, Attribute.GROUP_CREATION))
        return callable(outer) and callable(inner) and {*_READ} <= {*inspect.signature(inner).parameters}

    def outer(self, original: Wrapper) -> Wrapper:
        """Return the replacement of `Attribute.NEW_GROUP`."""
        signature, here, recorder = inspect.signature(original), self._here, self._recorder

        @wraps(original)
        def create(*args: Any, **kwargs: Any) -> Any:
            if recorder() is None:
                return original(*args, **kwargs)
            before = here.creators, here.begun
            here.creators, here.begun = _creators(signature, args, kwargs), None
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                end(recorder(), here.begun, error)
                raise
            else:
                end(recorder(), here.begun, None)
                return result
            finally:
                here.creators, here.begun = before

        return create

    def inner(self, original: Wrapper) -> Wrapper:
        """Return the replacement of `Attribute.GROUP_CREATION`."""
        signature, here = inspect.signature(original), self._here

        @wraps(original)
        def helper(*args: Any, **kwargs: Any) -> Any:
            creators, own, again = here.creators, self._recorder(), None
            if own is not None:
                here.creators = None
                try:
                    given = signature.bind(*args, **kwargs).arguments
                    if creators is None:
                        again = self._begin_again(own, given)
                    else:
                        begin = _begin_by_all if creators == "all" else _begin_by_members
                        here.begun = begin(self._c10d, own, given)
                except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
                    own.failed()
            self._before()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                end(own, again, error)  # if it succeeds, its end was recorded when the next run began
                raise

        return helper

    def _begin_again(self, recorder: Recorder, given: dict[str, Any]) -> _Begun | None:
        """Record that the default group is created again.

        A default group of another size is not recorded: which ranks must take part in it is unknown.
        """
        size = int(given.get("group_size", 0))
        if self._c10d._world.default_pg is not None or not self._comes_again(size):
            return None
        new = _new_group({**given, "global_ranks_in_group": range(size)}, awaits_all=False)
        return _begin_members_group(self._c10d, recorder, INIT, new, given)


def _creators(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Literal["all", "members"] | None:
    """Return which ranks must make this call. None: the arguments are wrong, and torch will raise an error."""
    try:
        is_local = signature.bind(*args, **kwargs).arguments.get("use_local_synchronization", False)
    except TypeError:
        return None
    return "members" if is_local else "all"


def _begin_by_all(c10d: ModuleType, recorder: Recorder, given: dict[str, Any]) -> _Begun | None:
    default = c10d._world.default_pg
    new = _new_group(given, awaits_all=default is not None and _awaits_all(c10d, default))
    if not new.ranks or default is None:
        return None
    from otel_fr.capture.groups import milliseconds, name_of

    begun = recorder.begin_group(name_of(default), OPERATION, new, milliseconds(given.get("timeout")))
    return None if begun is None else _Begun(*begun)


def _begin_by_members(c10d: ModuleType, recorder: Recorder, given: dict[str, Any]) -> _Begun | None:
    new = _new_group(given, awaits_all=False)
    tag = given.get("pg_tag")
    if not new.ranks or (tag and c10d._find_pg_by_ranks_and_tag(tag, list(new.ranks)) is not None):
        return None  # torch returns the existing group with this tag
    return _begin_members_group(c10d, recorder, OPERATION, new, given)


def _begin_members_group(
    c10d: ModuleType, recorder: Recorder, operation: str, new: NewGroup, given: dict[str, Any]
) -> _Begun | None:
    from otel_fr.capture.groups import milliseconds

    backends = c10d.BackendConfig(c10d.Backend(str(given["backend"]))).get_device_backend_map().values()
    names = {str(name).lower() for name in backends}
    begun = recorder.begin_members_group(operation, new, names, milliseconds(given.get("timeout")))
    return None if begun is None else _Begun(*begun, new.name)


def begin_split(c10d: ModuleType, recorder: Recorder, parent: Any, given: Mapping[str, Any]) -> _Begun | None:
    """Record that this rank begins ``ProcessGroup.split_group``, if the rank becomes a member. Never raises.

    Args:
        given: the arguments, by name.

    Returns:
        What `end` takes.
    """
    try:
        return _begin_split(c10d, recorder, parent, given)
    except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
        recorder.failed()
        return None


def _begin_split(c10d: ModuleType, recorder: Recorder, parent: Any, given: Mapping[str, Any]) -> _Begun | None:
    from otel_fr.capture.groups import backend_of, member_ranks, milliseconds
    from otel_fr.ring import NewGroup

    own, above = [int(rank) for rank in given["ranks"]], member_ranks(c10d, parent)
    description = given.get("group_desc")
    # The name and description that ProcessGroup::splitGroup gives. (torch 2.13 writes an address, not the number.)
    if description is None:
        description = f"{parent.group_desc}:split:{recorder.count_split(str(parent.group_name))}"
    name = given.get("group_name") or f"{parent.group_name}:split:{own}"
    if not above or parent.rank() not in own:
        return None
    devices = given.get("device_types") or parent._device_types
    begun = recorder.begin_members_group(
        SPLIT,
        NewGroup(name=str(name), description=str(description), ranks=tuple(above[rank] for rank in own)),
        {backend_of(c10d, parent, device)[0] for device in devices},
        milliseconds(given.get("timeout")),
    )
    return None if begun is None else _Begun(*begun, str(name))


def _new_group(given: dict[str, Any], *, awaits_all: bool) -> NewGroup:
    from otel_fr.capture.groups import in_run
    from otel_fr.ring import NewGroup

    description = given.get("group_desc")
    return NewGroup(
        name=str(given["group_name"]),
        description=_UNDESCRIBED if description is None else str(description),
        ranks=in_run(int(rank) for rank in given["global_ranks_in_group"]),
        awaits_all=awaits_all,
    )


def _awaits_all(c10d: ModuleType, default: Any) -> bool:
    """Return True if the creation also waits for ranks that do not become members.

    It does with torch's barrier after the creation (``TORCH_DIST_INIT_BARRIER=1``), and if the default group is bound
    to a device: the communicator is then split from the default group's.
    """
    has_barrier = getattr(c10d, "_is_barrier_after_init", None)
    return (has_barrier is not None and has_barrier() == 1) or getattr(default, "bound_device_id", None) is not None


def _has_failed(error: BaseException | None) -> bool:
    """Return True if the call failed because of other ranks, or was interrupted (by a signal, for example).

    Wrong arguments, or a backend that torch was built without, fail at once in each rank that passes them, and no rank
    waits. Such a call has ended, and does not count as failed.
    """
    if error is None or not isinstance(error, Exception):
        return error is not None
    from otel_fr.communication_errors import is_of_communication

    return is_of_communication(error)


def end(recorder: Recorder | None, begun: _Begun | None, error: BaseException | None) -> None:
    """Record that a creation has ended, with the error that it raised, if any. Never raises."""
    if recorder is None or begun is None:
        return
    try:
        from otel_fr.ring import RecordState

        state = RecordState.FAILED if _has_failed(error) else RecordState.COMPLETED
        recorder.end(begun.ticket, begun.group_index, 0, state, time.monotonic_ns())
        if begun.members_group:
            recorder.end_members_group(begun.members_group)
    except Exception:  # noqa: BLE001 - torch's own call must not see an error of ours
        recorder.failed()
