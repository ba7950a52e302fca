"""Limits learned from how long sections lasted and how far apart heartbeats were, kept for the next start of the job.

As in NVIDIA's resiliency extension, a limit is a factor times the longest time seen. It holds only for what was seen a
number of times, so that the first evaluation of a job, for example, has no limit; and it only ever grows.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_fr.config import SAFETY_FACTOR

SHORTEST: Final = 30.0
"""Seconds; the least learned limit: sections of milliseconds have pauses of seconds, as for a checkpoint of another
rank or a slow disk."""
MAX_NAMES: Final = 256
"""Sections of which something is learned: as many names as a ring holds."""
VERSION: Final = 1
_MAX_FILE: Final = 1 << 20


@dataclass(slots=True)
class _Seen:
    count: int = 0
    longest: float = 0.0

    def note(self, seconds: float) -> None:
        self.count += 1
        self.longest = max(self.longest, seconds)


class LearnedLimits:
    """What was seen, and the limits that follow. Seconds.

    Args:
        least: times that something must have been seen; 0: nothing is learned.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._heartbeats = _Seen()
        self._outside = _Seen()
        self._sections: dict[str, _Seen] = {}
        self.has_news = False

    def note_heartbeat(self, seconds: float, count: int = 1) -> None:
        """``count`` heartbeats came, none of them later than so many seconds after the one before."""
        if self._least:
            self._heartbeats.note(seconds)
            self._heartbeats.count += count - 1
            self.has_news = True

    def note_outside(self, seconds: float) -> None:
        """So many seconds passed between two sections."""
        if self._least:
            self._outside.note(seconds)
            self.has_news = True

    def note_section(self, name: str, seconds: float) -> None:
        """A section has ended."""
        if self._least and (name in self._sections or len(self._sections) < MAX_NAMES):
            self._sections.setdefault(name, _Seen()).note(seconds)
            self.has_news = True

    def heartbeat(self) -> float | None:
        return self._limit(self._heartbeats)

    def outside(self) -> float | None:
        return self._limit(self._outside)

    def section(self, name: str) -> float | None:
        seen = self._sections.get(name)
        return None if seen is None else self._limit(seen)

    def _limit(self, seen: _Seen) -> float | None:
        if not self._least or seen.count < self._least:
            return None
        return max(SHORTEST, SAFETY_FACTOR * seen.longest)

    # ---- kept over restarts

    def load(self, path: Path) -> None:
        """Add what an earlier start has seen. A file that is missing or is none of ours changes nothing."""
        if not self._least:
            return
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if path.stat().st_size > _MAX_FILE:
                return
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.get("version") != VERSION:
                return
            _add(self._heartbeats, data.get("heartbeat"))
            _add(self._outside, data.get("outside"))
            sections = data.get("sections")
            for name, seen in list(sections.items())[:MAX_NAMES] if isinstance(sections, dict) else ():
                _add(self._sections.setdefault(name, _Seen()), seen)

    def save(self, path: Path) -> None:
        """Write what was seen, so that a reader finds the old file or the new one. Raises OSError."""
        data = {
            "version": VERSION,
            "heartbeat": _as_json(self._heartbeats),
            "outside": _as_json(self._outside),
            "sections": {name: _as_json(seen) for name, seen in self._sections.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            scratch.write_text(json.dumps(data), encoding="utf-8")
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        self.has_news = False


def path_of(folder: Path, job: str, rank: int) -> Path:
    """The file of one rank of a job."""
    name = re.sub(r"[^\w.@+-]", "_", job).lstrip(".")[:128]
    return folder / (name or "job") / f"limits_rank_{rank}.json"


def _as_json(seen: _Seen) -> dict[str, Any]:
    return {"count": seen.count, "longest_s": round(seen.longest, 6)}


def _add(seen: _Seen, data: object) -> None:
    if not isinstance(data, dict):
        return
    count, longest = data.get("count"), data.get("longest_s")
    if type(count) is int and 0 <= count < 1 << 62 and type(longest) in (int, float):
        number = float(longest)  # type: ignore[arg-type]
        if math.isfinite(number) and number >= 0:
            seen.count += count
            seen.longest = max(seen.longest, number)
