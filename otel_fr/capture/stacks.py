"""The stacks of this process's threads, as text."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Final

from otel_fr.capture.sites import Sites

MAX_TEXT: Final = 60_000
"""Most characters. The connection to the monitor takes packets of about 200 kB, and a character may need 4 bytes."""
_MAX_FRAMES: Final = 64
_READ_SECONDS: Final = 0.1
"""Longest wait for source files. A rank that does not answer the monitor within 0.3 s seems to run no Python."""

_NAME: Final = "otel-fr-sources"
"""A thread without a name would take a number of the program's threads."""

_Place = tuple[str, int, str]
"""File, line and function of a frame."""


class _Sources:
    """Reads source files into `linecache`, in another thread: their file system may be slow, or may not answer."""

    def __init__(self) -> None:
        self._thread = threading.Thread(name=_NAME)

    def read(self, files: Iterable[str]) -> None:
        """Read the files that are not in the cache, for at most `_READ_SECONDS`, unless an earlier one still hangs."""
        missing = [file for file in files if _lines(file) is None]
        if missing and not self._thread.is_alive():
            self._thread = threading.Thread(target=_read, args=(missing,), name=_NAME, daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started
                self._thread.start()
                self._thread.join(_READ_SECONDS)


_sources: Final = _Sources()


def _read(files: Iterable[str]) -> None:
    for file in files:
        with contextlib.suppress(Exception):  # a loader of the program may raise anything
            linecache.getlines(file)


def _lines(file: str) -> list[str] | None:
    """Return the lines of a file that is in the cache, else None."""
    entry = linecache.cache.get(file, ())
    return entry[2] if len(entry) == 4 else None  # a shorter entry only says how to load the file


def _places(frame: FrameType | None) -> list[_Place]:
    """Return the places of a frame and its callers, the outermost first."""
    found: list[_Place] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found[::-1]


def _text(place: _Place) -> str:
    file, line, name = place
    text = f'  File "{file}", line {line}, in {name}\n'
    lines = _lines(file) or ()
    source = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return f"{text}    {source}\n" if source else text


def all_stacks(sites: Sites, caller: tuple[int, str], skip: int | None) -> tuple[str, str, int]:
    """Return the stacks of all threads as text, and the first thread's ``"file:line function"`` and kernel thread id.

    The text lacks lines of files that cannot be read in time.

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
    stacks: list[tuple[object, list[_Place]]] = []
    site = ""
    for ident in sorted(frames, key=lambda item: (item != first.ident, item != main.ident)):
        if ident == skip:
            continue
        frame = frames[ident]
        if ident == first.ident:
            user = sites.user_frame(frame)
            if user is not None:
                site = f"{user.f_code.co_filename}:{user.f_lineno} {user.f_code.co_name}"
        stacks.append((threads[ident].name if ident in threads else ident, _places(frame)))
    _sources.read(dict.fromkeys(file for _, places in stacks for file, _, _ in places))
    parts = [f"Thread {name} (most recent call last):\n" + "".join(map(_text, places)) for name, places in stacks]
    # In a forked process, Python (3.11) still has the parent's thread id.
    thread_id = os.getpid() if first is main else first.native_id or 0
    return "\n".join(parts)[:MAX_TEXT], site, thread_id
