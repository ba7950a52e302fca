"""The call site in the text of a process's stacks."""

from __future__ import annotations

import re

NATIVE_HEADING = "Native stacks, by py-spy:"
"""Begins the part of a stack's text with native frames, which comes last."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>[^\n]+)')
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) ", re.MULTILINE)
_LIBRARIES = ("/torch/", "/otel_fr/", "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>")


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
    users = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    frame = (users or frames)[0]
    return f"{frame['file']}:{frame['line']} {frame['name'].strip()}"
