"""Connects torch's operator dispatcher to the recorder.

A kernel at the BackendSelect key sees every call of a ``c10d::*`` operator: from Python, from DDP's C++ reducer, from
compiled code. (PyTorch after 2.13 is adding hooks to c10d itself; they would be used here.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_fr.capture.operations import WORK, Argument, Operator
from otel_fr.capture.recorder import Recorder
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
        count = 0
        try:
            readable = reduce_ops_are_readable(torch)
            for operator, overload in operators_of(torch):
                if not readable:  # they stay unknown
                    operator = operator._replace(reduce_op=-1)
                kernel = _kernel(recorder, operator, overload._handle.redispatch_boxed, after)
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


def _kernel(recorder: Recorder, operator: Operator, redispatch: Callable[..., Any], after: Any) -> Callable[..., Any]:
    """The function that the dispatcher calls instead of the operator: it records the call and passes it on.

    It passes it on exactly once, also if the recording fails.

    Args:
        after: the dispatch keys that come after our kernels.
    """

    def kernel(keyset: Any, *args: Any) -> Any:
        call = recorder.begin(operator, args)
        if call is None:
            return redispatch(keyset & after, *args)
        try:
            result = redispatch(keyset & after, *args)
        except BaseException:
            recorder.ended(call, RecordState.FAILED)
            raise
        recorder.follow(call, result)
        return result

    return kernel
