"""What the judge remembers of one run between two judgements. Times are monotonic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Judging:
    """
    Attributes:
        judged_at: when the run was last judged.
        look_at: before this time, nothing checks whether to judge it.
        next_wait_at: when the next wait was to become too long, as of the last look; infinity: none was.
        slowness_at: when it was last looked for ranks that always come last.
        pause: seconds for which it is not judged again, or longer (`triggers.due`).
        silent: the ranks that were silent when it was last judged. files_seen: `Run.files_noted` at the last look.
    """

    judged_at: float = -math.inf
    look_at: float = -math.inf
    next_wait_at: float = math.inf
    slowness_at: float = -math.inf
    pause: float = 0.0
    silent: frozenset[int] = frozenset()
    files_seen: int = 0

    def note_verdict(self, now: float, pause: float, silent: Iterable[int]) -> None:
        """A judgement ended now; the next one comes ``pause`` seconds later at the earliest."""
        self.judged_at, self.pause, self.silent = now, pause, frozenset(silent)
