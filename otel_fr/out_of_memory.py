"""Whether the kernel ended the rank because its cgroup, or the machine, was out of memory.

The kernel counts the processes that it ends for this: for a cgroup in ``memory.events`` (version 2) or
``memory.oom_control`` (version 1; Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux), for the
machine in ``/proc/vmstat``. It does not say which processes they were. If SIGKILL ended a rank shortly after such a
count rose, otel-fr assumes that the rank was one of them.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from otel_fr.sizes import size_text

RECENT_SECONDS: Final = 10.0
"""How long before the rank's end the count may have risen: the memory of a large process takes seconds to be freed.
Launchers that end the other ranks wait longer before they send SIGKILL."""
_LOOKS: Final = 64
_MAX_DEPTH: Final = 32
_NO_LIMIT: Final = 1 << 60
"""Version 1 has a number instead of "max": the largest multiple of the page size in 63 bits."""


class MemoryGroup(NamedTuple):
    """The memory cgroup of a process.

    Attributes:
        folder: where its files are.
        top: the highest visible folder.
        version: 1 or 2.
    """

    folder: Path
    top: Path
    version: int


def find_group(cgroup: str, mountinfo: str) -> MemoryGroup | None:
    """Return the memory cgroup that ``/proc/PID/cgroup`` and ``/proc/self/mountinfo`` show; None: none is mounted."""
    paths: dict[int, str] = {}
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and not controllers:
            paths[2] = path
    for version in (1, 2):  # a machine with both has the memory controller in version 1
        for line in mountinfo.splitlines() if version in paths else ():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) < 5 or not kind or kind[0] != ("cgroup", "cgroup2")[version - 1]:
                continue
            if version == 1 and "memory" not in kind[-1].split(","):
                continue
            root, top, path = fields[3].rstrip("/"), Path(fields[4]), paths[version]
            if path == root or path.startswith(root + "/"):
                return MemoryGroup(top / path[len(root) :].lstrip("/"), top, version)
    return None


def count_of(text: str) -> int | None:
    """Return the count ``oom_kill`` in one of these files' texts; None: it has none."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


class OutOfMemory:
    """The counts of one rank's cgroup and machine.

    Args:
        pid: the rank's process. It must be alive, unless ``first`` is given.
        proc: replaces ``/proc``.
        first: what `as_data` returned in the rank itself, which may have ended by now; anything else is ignored.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc"), first: object = None) -> None:
        self._vmstat = proc / "vmstat"
        self._looks: deque[tuple[float, int | None]] = deque(maxlen=_LOOKS)
        known = _from_data(first)
        if known is not None:
            self.group, count = known
            self._looks.append((time.monotonic(), count))
            return
        self.group = find_group(_text(proc / str(pid) / "cgroup"), _text(proc / "self" / "mountinfo"))
        if self.group is not None and self._group_count() is None:
            self.group = None
        self.look(time.monotonic())

    def as_data(self) -> list[object]:
        """Return the cgroup and the first count, for JSON."""
        group = self.group
        place: list[object] = ["", "", 0] if group is None else [str(group.folder), str(group.top), group.version]
        return [*place, self._looks[0][1]]

    def look(self, now: float) -> None:
        """Note the count, which takes some 20 microseconds. ``now``: monotonic seconds."""
        self._looks.append((now, self._count()))

    def reason(self, now: float) -> str:
        """Say why a process that SIGKILL has just ended was out of memory; "": nothing shows that it was."""
        count = self._count()
        before = [then for at, then in self._looks if now - at > RECENT_SECONDS][-1:]
        first = before[0] if before else self._looks[0][1]
        if count is None or first is None or count <= first:
            return ""
        limit = self._limit()
        where = "of the machine" if self.group is None else "" if limit is None else f"cgroup limit {size_text(limit)}"
        return f"out of memory ({where})" if where else "out of memory"

    def _count(self) -> int | None:
        return count_of(_text(self._vmstat)) if self.group is None else self._group_count()

    def _group_count(self) -> int | None:
        assert self.group is not None
        name = "memory.events" if self.group.version == 2 else "memory.oom_control"
        return count_of(_text(self.group.folder / name))

    def _limit(self) -> int | None:
        """Return the least limit in bytes of the cgroup and those above it; None: unknown, or none."""
        if self.group is None:
            return None
        name = "memory.max" if self.group.version == 2 else "memory.limit_in_bytes"
        found: list[int] = []
        folder = self.group.folder
        for _ in range(_MAX_DEPTH):
            text = _text(folder / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                found.append(int(text))
            if folder == self.group.top:
                break
            folder = folder.parent
        return min(found, default=None)


def _from_data(data: object) -> tuple[MemoryGroup | None, int] | None:
    """Return the inverse of `OutOfMemory.as_data`; None: the data has another form, or no count was known."""
    if not isinstance(data, list) or [type(item) for item in data] != [str, str, int, int]:
        return None
    folder, top, version, count = data
    return (MemoryGroup(Path(folder), Path(top), version) if version else None), count


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
