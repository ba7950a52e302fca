"""Notices that ``torch.compile`` compiles a function: a rank that does so alone is late, or runs another program.

TorchDynamo calls the functions registered in ``torch._dynamo.callback`` before it compiles, but passes them neither the
compiled function nor the reason. Both are read from local variables of a calling frame, which takes far less time than
a compilation. This module is loaded when the program loads TorchDynamo, and never loads TorchDynamo itself.
"""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType
from typing import Any, Final

from otel_fr.decision_names import COMPILATION
from otel_fr.fault_tolerance import decisions
from otel_fr.ring.decision_layout import MAX_TEXT

_CALLER: Final = "torch._dynamo.convert_frame"
_FUNCTION: Final = "_compile"
"""Function of `_CALLER`. Its local variable ``code`` is the code that it compiles; one of `_REASONS` says why the
code is compiled again (torch 2.6 to 2.14)."""
_REASONS: Final = ("recompile_reason", "recompile_reasons")
_FRAMES: Final = 16
"""Most frames to search between the callback and `_FUNCTION`. There are only a few."""
_REASON_OF_DYNAMO: Final = "DYNAMO"
"""Trigger of the compilation of a function. Backward passes and CUDA graphs have other triggers. torch 2.6 has only
this trigger, and passes none."""
_MAX_REASON: Final = 300
_COMPILE_ID: Final = re.compile(r"^\s*-?\s*\d+/\d+: ")
_LOCAL: Final = re.compile(r"L\['(\w+)'\]")
"""A local variable, as torch 2.6 writes it."""
_LONG_NUMBER: Final = re.compile(r"\b(0x[0-9a-f]+|\d{7,})\b")
"""Addresses and ids of objects, which differ in each process."""


class _Callbacks(list[Any]):
    """A list of callbacks that keeps otel-fr's when ``torch._dynamo.reset()`` clears it."""

    def clear(self) -> None:
        super().clear()
        self.append(note)


def with_note(callbacks: list[Any]) -> list[Any]:
    """Return the replacement of the list of callbacks that run before a compilation."""
    return _Callbacks([*callbacks, note])


def give_back(callbacks: list[Any], ours: list[Any]) -> None:
    """Update torch's own list with the callbacks that others have added or removed meanwhile."""
    callbacks[:] = [callback for callback in ours if callback is not note]


def note(arguments: Any = None) -> None:
    """Record that a compilation begins. Never raises."""
    try:
        trigger = getattr(getattr(arguments, "callback_trigger", None), "name", _REASON_OF_DYNAMO)
        if trigger == _REASON_OF_DYNAMO:
            decisions.happened(COMPILATION, _text(sys._getframe(1)))
    except Exception as error:  # noqa: BLE001 - the job comes first
        decisions.failed(error)


def _text(frame: FrameType | None) -> str:
    """Return ``"forward (model.py:30): why it is compiled again"``, without the file if that would be too long."""
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == _FUNCTION and frame.f_globals.get("__name__") == _CALLER:
            return _described(frame.f_locals)
        frame = frame.f_back
    return "a function"


def _described(values: Any) -> str:
    code = values.get("code")
    if not isinstance(code, CodeType):
        return "a function"
    text = f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
    reason = next((found for name in _REASONS if (found := values.get(name))), None)
    if isinstance(reason, list):
        reason = reason[-1]
    if not isinstance(reason, str):
        return text
    reason = plain_reason(reason)
    whole = f"{text}: {reason}"
    return whole if len(whole) <= MAX_TEXT else f"{code.co_name}: {reason}"


def plain_reason(reason: str) -> str:
    """Return the first line of a reason, without parts that differ between processes."""
    line = _COMPILE_ID.sub("", next((line for line in reason.splitlines() if line.strip()), ""))
    return _LONG_NUMBER.sub("...", _LOCAL.sub(r"\1", line.strip()[:_MAX_REASON]))
