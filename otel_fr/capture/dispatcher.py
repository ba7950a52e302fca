"""Connects torch's operator dispatcher to the recorder.

A kernel at the BackendSelect key sees every call of a ``c10d::*`` operator: from Python, from DDP's C++ reducer and
from compiled code. (PyTorch after 2.13 is adding hooks to c10d, which this module could use instead.)
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
    """Return the operators of this torch that are calls of a process group, each with its overload.

    Operators that otel-fr does not know come last, sorted by name. Only their schemas describe them.
    """
    there = {name.removeprefix("c10d::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    found: list[tuple[Operator, Any]] = []
    for name in [*OPERATORS, *sorted(there.difference(OPERATORS))]:
        if name not in there or "." in name:  # belongs to another torch version, or has no default overload
            continue
        overload = getattr(torch.ops.c10d, name).default
        schema = overload._schema
        arguments = [Argument(item.name, str(item.type)) for item in schema.arguments]
        returns_work = bool(schema.returns) and str(schema.returns[-1].type) == WORK
        with contextlib.suppress(ValueError):
            found.append((Operator.of(name, arguments, returns_work, code=len(found)), overload))
    return found


def reduce_ops_are_readable(torch: ModuleType) -> bool:
    """Return True if Python can read a call's reduce op. torch 2.6's class for this argument has no method for it."""
    return "op" in torch.classes.c10d.ReduceOp()._method_names()


class Kernels:
    """otel-fr's kernels in torch's dispatcher."""

    def __init__(self, torch: ModuleType, recorder: Recorder) -> None:
        """Install a kernel for each collective operator of this torch.

        Raises:
            RuntimeError: torch rejects the kernels, or has none of the operators. Nothing is installed then.
        """
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._library: Any = torch.library.Library("c10d", "IMPL")
        count = 0
        try:
            readable = reduce_ops_are_readable(torch)
            for operator, overload in operators_of(torch):
                if not readable:  # reduce ops stay unknown
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
        """Restore torch's own dispatch. Errors of torch are ignored."""
        with contextlib.suppress(Exception):
            self._library._destroy()


def _kernel(recorder: Recorder, operator: Operator, redispatch: Callable[..., Any], after: Any) -> Callable[..., Any]:
    """Return the function that the dispatcher calls instead of the operator. It records the call and passes it on.

    The call is passed on exactly once, even if recording it fails.

    Args:
        after: the dispatch keys that come after otel-fr's kernels.
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
