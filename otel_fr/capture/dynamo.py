"""Keeps ``torch.compile`` out of otel-fr's own frames.

While a compiled function runs, TorchDynamo sees each Python frame that its thread enters, and after a graph break also
the frames of our kernels. It would trace and recompile them, which costs far more than a call. It would also warn the
user about code of otel-fr, and raise where recompiling is forbidden (``torch.compiler.set_stance``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from otel_fr.capture.peer_actions import PeerActions
from otel_fr.fault_tolerance.sections import Section

_log = logging.getLogger("otel_fr")

_PACKAGE: Final = "otel_fr"
_WRAPPERS: Final = (Section.__call__, PeerActions._backward)
"""Functions that make wrappers of the program's own functions."""


def exclude_our_frames(torch: ModuleType) -> None:
    """Make TorchDynamo run otel-fr's loaded functions, and what they call, without tracing them. Never raises.

    The program's functions that wrappers of otel-fr call are traced.

    Code objects are marked, so the marks also hold for functions that are created from them later. Does not import
    TorchDynamo.
    """
    try:
        mark = _mark(torch._C._dynamo.eval_frame)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == _PACKAGE and module is not None:
                for code in _codes_of(vars(module).values(), name):
                    mark(code)
    except Exception:  # noqa: BLE001 - this torch has other functions: calls are still recorded
        _log.debug("otel-fr: torch.compile may trace otel-fr's functions", exc_info=True)


def _mark(eval_frame: Any) -> Callable[[CodeType], None]:
    """Return the function that makes TorchDynamo skip a code object and all that it calls, or only itself (torch 2.6;
    wrappers of the program's functions)."""
    if not hasattr(eval_frame, "set_code_exec_strategy"):
        skip: Callable[[CodeType], None] = eval_frame.skip_code
        return skip
    action, strategy = eval_frame._FrameAction, eval_frame._FrameExecStrategy
    whole, alone = strategy(action.SKIP, action.SKIP), strategy(action.SKIP, action.DEFAULT)
    wrappers = [code for make in _WRAPPERS for code in _with_inner(make.__code__)]
    return lambda code: eval_frame.set_code_exec_strategy(code, alone if code in wrappers else whole)


def _codes_of(values: Any, module: str) -> Iterator[CodeType]:
    """Yield the code objects of functions and classes that ``module`` defines, and of their inner functions."""
    for value in list(values):
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _codes_of(vars(value).values(), module)
            continue
        if isinstance(value, property):
            parts = [value.fget, value.fset, value.fdel]
        else:
            parts = [getattr(value, "__wrapped__", None), getattr(value, "__func__", None), value]
        for part in parts:
            if isinstance(part, FunctionType) and part.__module__ == module:
                yield from _with_inner(part.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
