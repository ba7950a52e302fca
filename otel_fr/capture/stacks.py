"""The stacks of this process's threads, as text."""

from __future__ import annotations

import linecache
import sys
import threading
from types import FrameType
from typing import Final

from otel_fr.capture.sites import Sites

MAX_TEXT: Final = 60_000
"""Characters; the connection to the monitor takes packets of about 200 kB, and a character may be 4 bytes."""
_MAX_FRAMES: Final = 64


def _format(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < _MAX_FRAMES:
        code = frame.f_code
        line = frame.f_lineno or 0
        # Only what is cached or readable from the file: no loader of user code is called.
        source = linecache.getline(code.co_filename, line).strip()
        text = f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
        lines.append(f"{text}    {source}\n" if source else text)
        frame = frame.f_back
    lines.reverse()
    return lines


def all_stacks(sites: Sites, skip: int | None = None) -> tuple[str, str]:
    """The stacks of all threads as text, the main thread first, and the main thread's ``"file:line function"``.

    Args:
        skip: the thread to leave out.
    """
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    parts: list[str] = []
    site = ""
    for ident in sorted(frames, key=lambda item: item != main):
        if ident == skip:
            continue
        frame = frames[ident]
        if ident == main:
            user = sites.user_frame(frame)
            if user is not None:
                site = f"{user.f_code.co_filename}:{user.f_lineno} {user.f_code.co_name}"
        parts.append(f"Thread {names.get(ident, ident)} (most recent call last):\n" + "".join(_format(frame)))
    return "\n".join(parts)[:MAX_TEXT], site
