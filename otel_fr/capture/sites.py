"""Where in the user's code a collective was called."""

from __future__ import annotations

import itertools
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

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
        self._of_libraries: dict[int, CodeType] = {}
        self._numbers: dict[tuple[int, ...], tuple[SiteKey, list[CodeType]]] = {}
        self._near: dict[tuple[int, int, int, int], tuple[CodeType, CodeType, CodeType, CodeType, SiteKey]] = {}
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
            self._of_libraries.clear()
        entry = self._inner[id(code)] = (code, self.is_library(code.co_filename))
        if entry[1]:
            self._of_libraries[id(code)] = code
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
            return 0, None
        # By the positions first, and then by the identity of the code objects: hashing their ids as well takes longer.
        second = frame.f_back
        third = None if second is None else second.f_back
        fourth = None if third is None else third.f_back
        if second is None or third is None or fourth is None:
            return self._number(frame), frame
        positions = (frame.f_lasti, second.f_lasti, third.f_lasti, fourth.f_lasti)
        near = self._near.get(positions)
        if (
            near is not None
            and near[0] is frame.f_code
            and near[1] is second.f_code
            and near[2] is third.f_code
            and near[3] is fourth.f_code
        ):
            return near[4], frame
        number = self._number(frame)
        self._near[positions] = (frame.f_code, second.f_code, third.f_code, fourth.f_code, number)
        return number, frame

    def finder(self) -> Callable[[], SiteKey]:
        """A function that returns what `find` finds for the caller of its caller, in three quarters of the time.

        The number alone: who needs the frame, too, calls `find`.
        """
        libraries = self._of_libraries
        near = self._near.get
        getframe = sys._getframe
        steps = range(_MAX_INNER)
        find = self.find

        def find_number() -> SiteKey:
            try:
                frame: Any = getframe(2)  # makes no objects of the frames between
            except ValueError:  # a C++ thread
                return find(2)[0]
            code = frame.f_code
            for _ in steps:
                if id(code) not in libraries:
                    break  # the user's, if it is known
                frame = frame.f_back
                if frame is None:
                    return find(2)[0]
                code = frame.f_code
            second = frame.f_back
            third = second and second.f_back
            fourth = third and third.f_back
            if fourth is not None:
                known = near((frame.f_lasti, second.f_lasti, third.f_lasti, fourth.f_lasti))
                if (
                    known is not None
                    and known[0] is code
                    and known[1] is second.f_code
                    and known[2] is third.f_code
                    and known[3] is fourth.f_code
                ):
                    return known[4]
            return find(2)[0]

        return find_number

    def _number(self, frame: FrameType) -> SiteKey:
        """The number of the site whose innermost user frame this is."""
        key: list[int] = []
        codes: list[CodeType] = []
        outer: FrameType | None = frame
        while outer is not None and len(codes) < _KEYED:
            codes.append(outer.f_code)
            key += (id(outer.f_code), outer.f_lasti)
            outer = outer.f_back
        if len(self._numbers) >= _MAX_NUMBERS:
            self._numbers.clear()
            self._near.clear()
        # With the code objects, so that their ids are not used again.
        return self._numbers.setdefault(tuple(key), (next(self._count), codes))[0]

    def describe(self, frame: FrameType | None) -> SiteDef:
        """The site of a frame from `find` with its callers, at most `MAX_FRAMES` in all. No frame: an empty site."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MAX_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith("<frozen "):
                frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return SiteDef(frames=tuple(frames))
