"""Which loops of its program a rank has left since its latest calls: it does so too early where its data is uneven.

A call's site has the frames in which it was made, and the rank's stack those in which it is now. Where they part, the
program has moved on: it has left a loop that has the line of the call and ends before the line of now, and the loops of
functions that have returned since. The source says where loops are.
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
"""Newest calls that are looked at."""
MAX_SITES: Final = 16
"""Sites of these, the newest."""
SITE_FRAMES: Final = 24
KEYED: Final = 4
"""Frames that a site has room for, and its innermost ones, which are those of each call (`otel_fr.capture.sites`)."""
LOOK_SECONDS: Final = 0.5
"""The longest time that a report waits for a look."""


def latest_sites(reader: RingReader, thread: str) -> list[tuple[Place, ...]]:
    """Where a thread made its latest calls, the latest first. ``thread``: as `otel_fr.stacks.own_thread` names it."""
    found: dict[tuple[Place, ...], None] = {}
    for record in reader.records(max(reader.first_record, reader.head - MAX_CALLS)):
        if own_thread(record.thread) == thread and not record.destroys and record.site.frames:
            found.pop(record.site.frames, None)
            found[record.site.frames] = None
    return list(found)[::-1][:MAX_SITES]


class Now(NamedTuple):
    """Where a thread is. No frames: its program has ended.

    Attributes:
        frames: the outermost first. known: how many of the innermost ones are certainly those of now.
    """

    frames: Sequence[Place] = ()
    known: int = 0

    @classmethod
    def of_stack(cls, stack: str) -> Now:
        frames = [(one.file, int(one.line), one.name) for one in frames_of(stack)[::-1]]
        frames = [one for one in frames if not one[0].startswith("<frozen ")]
        return cls(frames, len(frames))


def left_loops(sites: Iterable[Sequence[Place]], now: Now, sources: Sources) -> tuple[ReportedLoop, ...]:
    """The loops, of the latest call first. ``sites``: frames of each call, the innermost first."""
    places = [f"{file}:{line} {name}" for file, line, name in now.frames]
    found: dict[ReportedLoop, None] = {}
    for site in sites:
        loop = _left(_whole(site[::-1], now.frames), now, sources)
        # The outer frames of a site may be those of an earlier call.
        if loop is not None and not any(map(Loop(loop.file, loop.first, loop.last, loop.function).has, places)):
            found[loop] = None
    return tuple(found)[:MAX_LOOPS]


def _whole(call: Sequence[Place], now: Sequence[Place]) -> Sequence[Place]:
    """The frames of a call, the outermost first, with those that its site has no room for."""
    if len(call) < SITE_FRAMES or now.count(call[0]) != 1:
        return call
    return [*now[: now.index(call[0])], *call]


def _left(call: Sequence[Place], present: Now, sources: Sources) -> ReportedLoop | None:
    """The outermost loop that has the call and was left. ``call``: its frames, the outermost first."""
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
    """None: that the rank has left it says nothing. A loop in a step of the training begins again in the next one."""
    if is_nested and not loop.has_steps:
        return None
    return ReportedLoop(place[0], loop.first, loop.last, place[2], is_nested)


class LeftLoops:
    """Looks for them, one after the other, in threads: a source may be on a file system that does not answer."""

    def __init__(self, reader: RingReader, started: float) -> None:
        """``started``: Unix time at which the program did; 0: not known."""
        self._reader = reader
        self._sources = Sources(started)
        self._thread: threading.Thread | None = None
        self._until = 0.0
        self._looks = self._taken = 0
        self._found: tuple[int, tuple[ReportedLoop, ...]] = 0, ()

    def begin(self, caller: str, stack: str, now: float, *, is_over: bool = False) -> None:
        """Begin a look, unless an earlier one still waits.

        Args:
            caller: name of the thread that makes the calls. stack: its present one; "": it is where it made the latest.
            now: monotonic seconds. is_over: the program has ended.
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
        """What the last look finds will not count."""
        self._looks += 1

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def is_over(self, now: float) -> bool:
        """True once there is a result, or there need be none any more."""
        return not self._is_busy or now >= self._until

    @property
    def is_late(self) -> bool:
        """The last look has ended later than a report could wait for it."""
        return self._found[0] == self._looks > self._taken

    def found(self, patience: float = 0.0) -> tuple[ReportedLoop, ...]:
        """What the last look found; none: nothing within so many seconds."""
        if self._thread is not None:
            self._thread.join(patience)
        look, loops = self._found
        self._taken = look
        return loops if look == self._looks else ()

    def _run(self, look: int, sites: Sequence[Sequence[Place]], present: Now) -> None:
        with contextlib.suppress(Exception):  # no source may do more than leave this out
            self._found = look, left_loops(sites, present, self._sources)
