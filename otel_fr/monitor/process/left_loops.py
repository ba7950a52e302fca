"""Finds the loops that a rank has left since its latest calls. With uneven data, a rank leaves its loop too early.

A call's site has the frames in which the call was made, and the rank's stack has the present frames. In the function
where these differ, the program has left a loop if the loop contains the line of the call and ends before the present
line. It has also left the loops of functions that have returned since. The source shows where loops are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from otel_fr.monitor.process.source_loops import Place, SourceLoop, Sources
from otel_fr.rank_report import MAX_LOOPS, ReportedLoop
from otel_fr.ring import RingReader
from otel_fr.stacks import Loop, frames_of, is_library, own_thread

MAX_CALLS: Final = 256
"""How many of the newest calls are examined."""
MAX_SITES: Final = 16
"""How many of their sites are examined, the newest first."""
SITE_FRAMES: Final = 24
KEYED: Final = 4
"""A site has room for `SITE_FRAMES` frames. Only the `KEYED` innermost are exact for each call (`capture.sites`)."""
LOOK_SECONDS: Final = 0.5
"""The longest time that a report waits for the result."""


def latest_sites(reader: RingReader, thread: str) -> list[tuple[Place, ...]]:
    """Return where a thread made its latest calls, the latest first. ``thread``: see `otel_fr.stacks.own_thread`."""
    found: dict[tuple[Place, ...], None] = {}
    for record in reader.records(max(reader.first_record, reader.head - MAX_CALLS)):
        if own_thread(record.thread) == thread and not record.destroys and record.site.frames:
            found.pop(record.site.frames, None)
            found[record.site.frames] = None
    return list(found)[::-1][:MAX_SITES]


class Now(NamedTuple):
    """Where a thread is now. No frames: the program has ended.

    Attributes:
        frames: the frames, outermost first.
        known: how many of the innermost frames are certain.
    """

    frames: Sequence[Place] = ()
    known: int = 0

    @classmethod
    def of_stack(cls, stack: str) -> Now:
        frames = [(one.file, int(one.line), one.name) for one in frames_of(stack)[::-1]]
        frames = [one for one in frames if not one[0].startswith("<frozen ")]
        return cls(frames, len(frames))


def left_loops(sites: Iterable[Sequence[Place]], now: Now, sources: Sources) -> tuple[ReportedLoop, ...]:
    """Return the loops that were left, the latest call's first. ``sites``: frames of each call, innermost first."""
    places = [f"{file}:{line} {name}" for file, line, name in now.frames]
    found: dict[ReportedLoop, None] = {}
    for site in sites:
        loop = _left(_whole(site[::-1], now.frames), now, sources)
        # The outer frames of a site may come from an earlier call.
        if loop is not None and not any(map(Loop(loop.file, loop.first, loop.last, loop.function).has, places)):
            found[loop] = None
    return tuple(found)[:MAX_LOOPS]


def _whole(call: Sequence[Place], now: Sequence[Place]) -> Sequence[Place]:
    """Return the frames of a call, outermost first. Frames for which its site had no room come from ``now``."""
    if len(call) < SITE_FRAMES or now.count(call[0]) != 1:
        return call
    return [*now[: now.index(call[0])], *call]


def _left(call: Sequence[Place], present: Now, sources: Sources) -> ReportedLoop | None:
    """Return the outermost loop around the call that was left. ``call``: the call's frames, outermost first."""
    now = present.frames
    common = next((at for at, pair in enumerate(zip(call, now, strict=False)) if pair[0] != pair[1]), len(now))
    if common >= len(call) or (now and not 0 < len(now) - common <= present.known):
        return None
    is_nested = any(_may_be_in_loop(place, sources) for place in call[:common])
    returned = call[common:]
    if now:
        then, here = call[common], now[common]
        function = sources.function(then)
        if function is None or function is not sources.function(here) or here[1] <= then[1]:
            return None
        around = function.loops_at(then[1])
        left = [loop for loop in around if loop.last < here[1]]
        is_nested = is_nested or len(left) < len(around)
        if left and not is_library(then[0]):
            return _reported(then, left[0], is_nested)
        returned = returned[1:]
    for place in returned:
        if is_library(place[0]):
            continue
        function = sources.function(place)
        if function is None or function.is_paused:
            is_nested = True
        elif loops := function.loops_at(place[1]):
            return _reported(place, loops[0], is_nested)
    return None


def _may_be_in_loop(place: Place, sources: Sources) -> bool:
    function = sources.function(place)
    return function is None or function.repeats(place[1])


def _reported(place: Place, loop: SourceLoop, is_nested: bool) -> ReportedLoop | None:
    """Return the loop for the report. None: leaving it means nothing, because the next training step repeats it."""
    if is_nested and not loop.has_steps:
        return None
    return ReportedLoop(place[0], loop.first, loop.last, place[2], is_nested)


class LeftLoops:
    """Looks for left loops in a thread, because a source may be on a file system that does not answer."""

    def __init__(self, reader: RingReader, started: float) -> None:
        """``started``: Unix time at which the program started; 0: unknown."""
        self._reader = reader
        self._sources = Sources(started)
        self._thread: threading.Thread | None = None
        self._until = 0.0
        self._looks = self._taken = 0
        self._found: tuple[int, tuple[ReportedLoop, ...]] = 0, ()

    def begin(self, caller: str, stack: str, now: float, *, is_over: bool = False) -> None:
        """Begin a look, unless an earlier one still waits.

        Args:
            caller: name of the thread that makes the calls.
            stack: the thread's present stack; "": the thread is where it made its latest call.
            now: monotonic seconds.
            is_over: True if the program has ended.
        """
        self._until = now + LOOK_SECONDS
        self._looks += 1
        if not self._is_busy:
            sites = latest_sites(self._reader, own_thread(caller))
            present = Now() if is_over or not sites else Now.of_stack(stack) if stack else Now(sites[0][::-1], KEYED)
            given = self._looks, sites if is_over or present.frames else [], present
            self._thread = threading.Thread(target=self._run, args=given, name="otel-fr-loops", daemon=True)
            self._thread.start()

    def forget(self) -> None:
        """Ignore the result of the last look."""
        self._looks += 1

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def is_over(self, now: float) -> bool:
        """Return True once there is a result, or the time for it is over."""
        return not self._is_busy or now >= self._until

    @property
    def is_late(self) -> bool:
        """True if the last look has ended, but its result was not taken yet."""
        return self._found[0] == self._looks > self._taken

    def found(self, patience: float = 0.0) -> tuple[ReportedLoop, ...]:
        """Return the result of the last look, or nothing if there is none within ``patience`` seconds."""
        if self._thread is not None:
            self._thread.join(patience)
        look, loops = self._found
        self._taken = look
        return loops if look == self._looks else ()

    def _run(self, look: int, sites: Sequence[Sequence[Place]], present: Now) -> None:
        with contextlib.suppress(Exception):  # whatever a source contains, it can only prevent this result
            self._found = look, left_loops(sites, present, self._sources)
