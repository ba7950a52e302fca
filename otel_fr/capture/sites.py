"""Where in the user's code a collective was called."""

from __future__ import annotations

import sys
import sysconfig
import threading
from types import CodeType, FrameType
from typing import Final

from otel_fr.ring import SiteDef

MAX_FRAMES: Final = 24
_KEYED: Final = 4
"""Frames, from the user's outward, that distinguish call sites. Frames further out are recorded as in the first call
through these four: comparing them too would cost the training thread about half a microsecond each."""
_WRAPPERS: Final = ("/typing_extensions.py", "/wrapt/", "/decorator.py", "/opentelemetry/")
"""Installed packages that only wrap functions (torch's deprecated ones, for example)."""
_MAX_CODES: Final = 16_384
_MAX_INNER: Final = 64

SiteKey = tuple[object, ...]


class Sites:
    """Finds call sites. Thread-safe: the cache only saves work."""

    def __init__(self, libraries: tuple[str, ...]) -> None:
        """``libraries``: folders whose frames are never user code, each with a trailing separator."""
        stdlib = sysconfig.get_path("stdlib") + "/"
        self._libraries = (*libraries, "<frozen ", "<eval_with_key>")
        self._stdlib = stdlib
        # The code objects are kept so that their ids are not reused.
        self._inner: dict[int, tuple[CodeType, bool]] = {}
        self._epoch = 0
        self._main = threading.main_thread().ident

    def is_library(self, filename: str) -> bool:
        """True for torch, otel-fr, the standard library and generated code."""
        if filename.startswith(self._libraries):
            return True
        if filename.startswith(self._stdlib):
            rest = filename[len(self._stdlib) :]
            if not rest.startswith(("site-packages/", "dist-packages/")):
                return True
        return "/torchinductor_" in filename or ("-packages/" in filename and any(w in filename for w in _WRAPPERS))

    def _classify(self, code: CodeType) -> tuple[CodeType, bool]:
        if len(self._inner) >= _MAX_CODES:
            # Ids of released code objects may be reused, so a later key must not equal an earlier one.
            self._inner.clear()
            self._epoch += 1
        entry = self._inner[id(code)] = (code, self.is_library(code.co_filename))
        return entry

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of user code, from ``frame`` outward; None: there is none."""
        inner = self._inner
        steps = 0
        while frame is not None and steps < _MAX_INNER:
            code = frame.f_code
            entry = inner.get(id(code)) or self._classify(code)
            if not entry[1]:
                return frame
            frame = frame.f_back
            steps += 1
        return None

    def find(self, depth: int) -> tuple[SiteKey, FrameType | None]:
        """The call site: its key, and the frame `describe` takes.

        Args:
            depth: number of frames from this one outward that are otel-fr's; in a C++ thread there are no others.

        A thread without user code (autograd's) gets the main thread's call site.
        """
        inner = self._inner
        frame = sys._getframe(depth).f_back
        # The same as `user_frame`, inlined to save a call.
        for _ in range(_MAX_INNER):
            if frame is None:
                break
            entry = inner.get(id(frame.f_code)) or self._classify(frame.f_code)
            if not entry[1]:
                break
            frame = frame.f_back
        else:
            frame = None
        if frame is None and threading.get_ident() != self._main:
            frame = self.user_frame(sys._current_frames().get(self._main or 0))
        if frame is None:
            return (), None
        # `_KEYED` frames, written out.
        second = frame.f_back
        if second is None:
            return (self._epoch, id(frame.f_code), frame.f_lasti), frame
        third = second.f_back
        two = (self._epoch, id(frame.f_code), frame.f_lasti, id(second.f_code), second.f_lasti)
        if third is None:
            return two, frame
        fourth = third.f_back
        if fourth is None:
            return (*two, id(third.f_code), third.f_lasti), frame
        return (*two, id(third.f_code), third.f_lasti, id(fourth.f_code), fourth.f_lasti), frame

    def describe(self, frame: FrameType | None) -> SiteDef:
        """The site of a frame from `find` with its callers, at most `MAX_FRAMES` in all. No frame: an empty site."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MAX_FRAMES:
            code = frame.f_code
            # A key consists of ids of code objects, which must live as long as the key is used.
            if id(code) not in self._inner:
                self._classify(code)
            if not code.co_filename.startswith("<frozen "):
                frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return SiteDef(frames=tuple(frames))
