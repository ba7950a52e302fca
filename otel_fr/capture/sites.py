"""Finds where the user's code called a collective."""

from __future__ import annotations

import itertools
import sys
import sysconfig
import threading
from types import CodeType, FrameType
from typing import Final

from otel_fr.ring import SiteDef
from otel_fr.stacks import is_wrapper

MAX_FRAMES: Final = 24
_KEYED: Final = 4
"""How many frames, from the innermost user frame outward, distinguish call sites. Frames further out are recorded from
the first call of a site. Comparing them too would cost the training thread about half a microsecond each."""
_MAX_CODES: Final = 16_384
_MAX_NUMBERS: Final = 65_536
"""Most sites that are remembered: as many as the ring's writer remembers."""
_MAX_INNER: Final = 64

SiteKey = int
"""Number of a call site; 0: there is no user code. Numbers are never reused."""


class Sites:
    """Finds call sites. Thread-safe: the cache only saves work."""

    def __init__(self, libraries: tuple[str, ...]) -> None:
        """``libraries``: folders whose frames are never user code, each with a trailing separator."""
        stdlib = sysconfig.get_path("stdlib") + "/"
        self._libraries = (*libraries, "<frozen ", "<eval_with_key>")
        self._stdlib = stdlib
        # Keep the code objects, so that their ids are not reused.
        self._inner: dict[int, tuple[CodeType, bool]] = {}
        self._numbers: dict[tuple[int, ...], tuple[SiteKey, list[CodeType]]] = {}
        self._count = itertools.count(1)
        self._main = threading.main_thread().ident

    def is_library(self, filename: str) -> bool:
        """Return True for torch, otel-fr, the standard library and generated code."""
        if filename.startswith(self._libraries):
            return True
        if filename.startswith(self._stdlib):
            rest = filename[len(self._stdlib) :]
            if not rest.startswith(("site-packages/", "dist-packages/")):
                return True
        return "/torchinductor_" in filename or is_wrapper(filename)

    def _classify(self, code: CodeType) -> tuple[CodeType, bool]:
        if len(self._inner) >= _MAX_CODES:
            self._inner.clear()
        entry = self._inner[id(code)] = (code, self.is_library(code.co_filename))
        return entry

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of user code, from ``frame`` outward, or None."""
        for _ in range(_MAX_INNER):
            if frame is None:
                break
            code = frame.f_code
            _, is_library = self._inner.get(id(code)) or self._classify(code)
            if not is_library:
                return frame
            frame = frame.f_back
        return None

    def find(self, depth: int) -> tuple[SiteKey, FrameType | None]:
        """Return the call site's key, and the frame that `describe` takes.

        A thread without user code, such as autograd's, gets the main thread's call site.

        Args:
            depth: number of otel-fr's frames from this one outward. A C++ thread has no other frames.
        """
        frame = self.user_frame(sys._getframe(depth).f_back)
        if frame is None and threading.get_ident() != self._main:
            frame = self.user_frame(sys._current_frames().get(self._main or 0))
        return (0 if frame is None else self._number(frame)), frame

    def _number(self, frame: FrameType) -> SiteKey:
        """Return the number of the site with this innermost user frame."""
        codes: list[CodeType] = []
        positions: list[int] = []
        outer: FrameType | None = frame
        while outer is not None and len(codes) < _KEYED:
            codes.append(outer.f_code)
            positions.append(outer.f_lasti)
            outer = outer.f_back
        key = (*map(id, codes), *positions)
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= _MAX_NUMBERS:
                self._numbers.clear()
            # Keep the code objects, so that their ids are not reused.
            found = self._numbers.setdefault(key, (next(self._count), codes))
        return found[0]

    def describe(self, frame: FrameType | None) -> SiteDef:
        """Return the site of a frame from `find`: the frame and its callers, at most `MAX_FRAMES` in all.

        Without a frame, the site is empty.
        """
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MAX_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith("<frozen "):
                frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return SiteDef(frames=tuple(frames))
