"""How long resolved incidents and finished jobs stay in the store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """How long resolved incidents and finished jobs are kept. Open incidents are always kept."""

    seconds: float = 90 * 86_400.0
    size: int = 256 * 1024 * 1024
    """Bytes of the database. Beyond it, finished jobs are deleted first, then resolved incidents, the oldest first."""
