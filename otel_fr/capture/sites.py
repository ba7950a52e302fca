"""Where in the user's code a collective was called."""

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
"""Frames, from the user's outward, that distinguish call sites. Frames further out are recorded as in the first call
through these four: comparing them too would cost the training thread about half a microsecond each."""
_MAX_CODES: Final = 16_384
_MAX_NUMBERS: Final = 65_536
"""Of sites; as many as the ring's writer remembers."""
_MAX_INNER: Final = 64

SiteKey = int
"""Number of a call site; 0: there is no user code. No number is used for two sites."""


class Sites:
    """Finds call sites. Thread-safe: the cache only saves work."""

    def __init__(self, libraries: tuple[str, ...]) -> None:
        """``libraries``: folders whose frames are never user code, each with a trailing separator."""
        stdlib = sysconfig.get_path("stdlib") + "/"
        self._libraries = (*libraries, "<frozen ", "<eval_with_key>")
        self._stdlib = stdlib
        # The code objects are kept so that their ids are not reused.
        self._inner: dict[int, tuple[CodeType, bool]] = {}
        self._numbers: dict[tuple[int, ...], tuple[SiteKey, list[CodeType]]] = {}
        self._count = itertools.count(1)
        self._main = threading.main_thread().ident

    def is_library(self, filename: str) -> bool:
        """True for torch, otel-fr, the standard library and generated code."""
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
        """The innermost frame of user code, from ``frame`` outward; None: there is none."""
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
        """The call site: its key, and the frame `describe` takes.

        Args:
            depth: number of frames from this one outward that are otel-fr's; in a C++ thread there are no others.

        A thread without user code (autograd's) gets the main thread's call site.
        """
        frame = self.user_frame(sys._getframe(depth).f_back)
        if frame is None and threading.get_ident() != self._main:
            frame = self.user_frame(sys._current_frames().get(self._main or 0))
        return (0 if frame is None else self._number(frame)), frame

    def _number(self, frame: FrameType) -> SiteKey:
        """The number of the site whose innermost user frame this is."""
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
            # With the code objects, so that their ids are not used again.
            found = self._numbers.setdefault(key, (next(self._count), codes))
        return found[0]

    def describe(self, frame: FrameType | None) -> SiteDef:
        """The site of a frame from `find` with its callers, at most `MAX_FRAMES` in all. No frame: an empty site."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MAX_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith("<frozen "):
                frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return SiteDef(frames=tuple(frames))
