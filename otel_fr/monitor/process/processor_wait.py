"""Measures how long the rank's main thread has waited for a processor since the rank last moved. The host may be busy,
or the cgroup's limit used up."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

STILL_SECONDS: Final = 0.2
"""Looks begin this long after the rank last moved."""
EVERY_SECONDS: Final = 0.25
"""Time between two looks."""


class Turns(NamedTuple):
    """One look at a thread, by ``schedstat`` (Documentation/scheduler/sched-stats.rst of Linux) and ``stat``.

    Attributes:
        at_ns: time of the look, monotonic.
        ran_ns: time on a processor.
        waited_ns: time spent waiting for a processor, without the present wait.
        number: how often the thread has got a processor.
        is_ready: True if it runs or waits for a processor.
    """

    at_ns: int
    ran_ns: int
    waited_ns: int
    number: int
    is_ready: bool


def turns_of(folder: Path, now_ns: int) -> Turns | None:
    """Look at a thread. None: unknown, as with a kernel without CONFIG_SCHED_INFO. ``folder``: /proc/PID/task/TID."""
    try:
        ran, waited, number = map(int, (folder / "schedstat").read_text().split())
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return Turns(now_ns, ran, waited, number, state == "R")


class ProcessorWait:
    """Watches the main thread while the rank does not move."""

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self._folder = root / str(pid) / "task" / str(pid)
        self._moved_ns = 0
        self._forget()

    def _forget(self) -> None:
        self._due_ns = 0
        self._first: Turns | None = None
        self._last: Turns | None = None
        self._present_ns = 0

    def step(self, now_ns: int, moved_ns: int) -> None:
        """Look at the thread if it is time. ``moved_ns``: when the rank last moved. Both times are monotonic."""
        if moved_ns != self._moved_ns:
            self._moved_ns = moved_ns
            self._forget()
        if now_ns - moved_ns < STILL_SECONDS * 1e9 or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + int(EVERY_SECONDS * 1e9)
        found, before = turns_of(self._folder, now_ns), self._last
        if found is None:
            return
        if before is None:
            self._first = found
        elif before.is_ready and found.is_ready and before.number == found.number:
            # The kernel counts a wait only once it is over. If the thread has got no processor since the previous look,
            # the time in which it did not run was a wait. (With nohz_full, running time is counted up to 1 s late.)
            self._present_ns += found.at_ns - before.at_ns - (found.ran_ns - before.ran_ns)
        else:
            self._present_ns = 0
        self._last = found

    @property
    def seconds(self) -> float:
        """Seconds spent waiting for a processor since the rank last moved; 0 if unknown."""
        first, last = self._first, self._last
        if first is None or last is None:
            return 0.0
        waited_ns = last.waited_ns - first.waited_ns + self._present_ns
        return round(min(max(0, waited_ns), last.at_ns - first.at_ns) / 1e9, 3)
