"""Which frames are the user's, and the call site in the text of a process's stacks."""

from __future__ import annotations

import re

NATIVE_HEADING = "Native stacks, by py-spy:"
"""Begins the part of a stack's text with native frames, which comes last."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>[^\n]+)')
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) ", re.MULTILINE)
_LIBRARIES = ("/torch/", "/otel_fr/", "/torchcomms/", "/torchinductor_", "/contextlib.py", "<frozen ", "<string>")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)")
_PACKAGES = "-packages/"
_WRAPPERS = ("/typing_extensions.py", "/wrapt/", "/decorator.py", "/opentelemetry/")


def is_wrapper(file: str) -> bool:
    """True for installed packages that only wrap functions, as `typing_extensions` does with deprecated ones."""
    return _PACKAGES in file and any(part in file for part in _WRAPPERS)


def is_library(file: str) -> bool:
    """True for torch, otel-fr, the standard library, generated code and wrappers: no call there is the user's own.

    Other installed packages count as the user's: they call collectives of their own.
    """
    return any(part in file for part in _LIBRARIES) or is_wrapper(file) or bool(_STANDARD_LIBRARY.search(file))


def site_of(stack: str) -> str:
    """``"file:line function"`` of the user's code in the first thread of a stack, or "" if there is no frame.

    Takes the text of `faulthandler` (innermost frame first) and of `traceback` (innermost last). The user's frame is
    the innermost one outside libraries; if all frames are in libraries, the innermost one.
    """
    starts = [match.start() for match in _THREAD.finditer(stack)]
    text = stack[: starts[1]] if len(starts) > 1 else stack
    frames = list(_FRAME.finditer(text))
    if not frames:
        return ""
    if "most recent call last" in text:
        frames.reverse()
    users = [frame for frame in frames if not (is_library(frame["file"]) or _PACKAGES in frame["file"])]
    frame = (users or frames)[0]
    return f"{frame['file']}:{frame['line']} {frame['name'].strip()}"
