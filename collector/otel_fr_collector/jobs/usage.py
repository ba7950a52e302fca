"""Total size of all runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Usage:
    """Total size of all runs, and what was refused or evicted: by kind, how often.

    Attributes:
        runs: how many there are.
        is_full: a run smaller than its share was refused room since room was last made.
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
        """Count a refusal: the run has ``held`` of a kind, and all runs together may have ``limit``."""
        self.refused[kind] += 1
        if held * self.runs < limit:
            self.is_full = True
