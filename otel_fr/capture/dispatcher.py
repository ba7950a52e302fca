"""Connects torch's operator dispatcher to the recorder.

A kernel at the BackendSelect key sees every call of a ``c10d::*`` operator: from Python, from DDP's C++ reducer, from
compiled code. (PyTorch after 2.13 is adding hooks to c10d itself; they would be used here.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from otel_fr.capture.completion import EndMode
from otel_fr.capture.operations import WORK, Argument, Operator
from otel_fr.capture.recorder import PendingCall, Recorder
from otel_fr.operations import OPERATORS
from otel_fr.ring import RecordState


def operators_of(torch: ModuleType) -> list[tuple[Operator, Any]]:
    """The operators of this torch that are calls of a process group, each with its overload.

    Those that this otel-fr does not know come last, by name: they are described by their schemas alone.
    """
    there = {name.removeprefix("c10d::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    found: list[tuple[Operator, Any]] = []
    for name in [*OPERATORS, *sorted(there.difference(OPERATORS))]:
        if name not in there or "." in name:  # of another torch version; no default overload
            continue
        overload = getattr(torch.ops.c10d, name).default
        schema = overload._schema
        arguments = [Argument(item.name, str(item.type)) for item in schema.arguments]
        returns_work = bool(schema.returns) and str(schema.returns[-1].type) == WORK
        with contextlib.suppress(ValueError):
            found.append((Operator.of(name, arguments, returns_work, code=len(found)), overload))
    return found


def reduce_ops_are_readable(torch: ModuleType) -> bool:
    """Whether Python can read the reduce op of a call. torch 2.6's class for operators' arguments has no method."""
    return "op" in torch.classes.c10d.ReduceOp()._method_names()


class Kernels:
    """otel-fr's kernels in torch's dispatcher."""

    def __init__(self, torch: ModuleType, recorder: Recorder) -> None:
        """Install a kernel for each collective operator of this torch.

        Raises:
            RuntimeError: torch rejects them, or has none of the operators; nothing is installed then.
        """
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._library: Any = torch.library.Library("c10d", "IMPL")
        follow = _follow_function(recorder, torch._C._distributed_c10d.Work)
        count = 0
        try:
            readable = reduce_ops_are_readable(torch)
            for operator, overload in operators_of(torch):
                if not readable:  # they stay unknown
                    operator = operator._replace(reduce_op=-1)
                onward = Onward(overload._handle.redispatch_boxed, after)
                kernel = recorder.kernel_function(operator, onward.get, onward.of, follow)
                self._library.impl(operator.name, kernel, "BackendSelect", with_keyset=True)
                count += 1
            if not count:
                raise RuntimeError("this torch has none of the c10d operators")
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore torch's own dispatch; a failure of torch to do so is ignored."""
        with contextlib.suppress(Exception):
            self._library._destroy()


class Onward(dict[int, Any]):
    """What passes a call on, by the number of its dispatch key set: without the keys that come before our kernels.

    There are as many as kinds of tensors. To compute a key set takes twice as long as to look it up.
    """

    def __init__(self, redispatch: Callable[..., Any], after: Any) -> None:
        super().__init__()
        self._redispatch = redispatch
        self._after = after

    def of(self, keyset: Any) -> Any:
        """That of ``keyset``, which is remembered."""
        onward = self[keyset.raw_repr()] = partial(self._redispatch, keyset & self._after)
        return onward


def _follow_function(recorder: Recorder, work_type: Any) -> Callable[[PendingCall, Any], None]:
    unbox = work_type.unbox
    futures = recorder.futures
    end = recorder.end
    waits = recorder.waits

    def follow(call: PendingCall, result: Any) -> None:
        ticket, group_index, sequence_id, mode = call
        if mode is EndMode.WORK and recorder.follow_ends:
            work = unbox(result[-1] if type(result) is tuple else result)
            try:
                future = work.get_future()
            except Exception:  # noqa: BLE001 - "not implemented": it depends on the operator and torch's version
                waits.follow(work, ticket, group_index, sequence_id)
            else:
                # Looked up each time: `FutureCallback` counts references to the function, so no other may be held.
                future.add_done_callback(partial(futures.function, ticket, group_index, sequence_id))
        else:
            end(ticket, group_index, sequence_id, RecordState.UNKNOWN, 0)

    return follow
