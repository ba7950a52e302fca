"""The stacks of this process's threads, as text."""

from __future__ import annotations

import linecache
import os
import sys
import threading
from types import FrameType
from typing import Final

from otel_fr.capture.sites import Sites

MAX_TEXT: Final = 60_000
"""Most characters. The connection to the monitor takes packets of about 200 kB, and a character may need 4 bytes."""
_MAX_FRAMES: Final = 64


def _format(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < _MAX_FRAMES:
        code = frame.f_code
        line = frame.f_lineno or 0
        # Reads only cached lines and files: no loader of user code is called.
        source = linecache.getline(code.co_filename, line).strip()
        text = f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
        lines.append(f"{text}    {source}\n" if source else text)
        frame = frame.f_back
    lines.reverse()
    return lines


def all_stacks(sites: Sites, caller: tuple[int, str], skip: int | None) -> tuple[str, str, int]:
    """Return the stacks of all threads as text, and the first thread's ``"file:line function"`` and kernel thread id.

    Args:
        caller: ident and name of the thread that comes first, before the main thread. It is ignored if the thread has
            ended: another thread may have its ident now.
        skip: ident of the thread to leave out.
    """
    frames = sys._current_frames()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    main = first = threading.main_thread()
    known = threads.get(caller[0])
    if known is not None and known.name == caller[1] and caller[0] in frames:
        first = known
    parts: list[str] = []
    site = ""
    for ident in sorted(frames, key=lambda item: (item != first.ident, item != main.ident)):
        if ident == skip:
            continue
        frame = frames[ident]
        if ident == first.ident:
            user = sites.user_frame(frame)
            if user is not None:
                site = f"{user.f_code.co_filename}:{user.f_lineno} {user.f_code.co_name}"
        name = threads[ident].name if ident in threads else ident
        parts.append(f"Thread {name} (most recent call last):\n" + "".join(_format(frame)))
    # In a forked process, Python (3.11) still has the parent's thread id.
    thread_id = os.getpid() if first is main else first.native_id or 0
    return "\n".join(parts)[:MAX_TEXT], site, thread_id
