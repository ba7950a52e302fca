"""What all runs together hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Usage:
    """What all runs together hold, and what found no room: by kind, how often.

    Attributes:
        runs: how many there are.
        is_full: a run that holds less than its share found no room since room was last made.
    """

    runs: int = 0
    ranks: int = 0
    groups: int = 0
    members: int = 0
    progress_entries: int = 0
    reported: int = 0
    is_full: bool = False
    refused: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)

    def refuse(self, kind: str, held: int, limit: int) -> None:
        """There is no room for one more of a kind of which the run holds so many, and all together may hold so many."""
        self.refused[kind] += 1
        if held * self.runs < limit:
            self.is_full = True
