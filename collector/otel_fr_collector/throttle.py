"""Limits how often a recurring log message is logged."""

from __future__ import annotations

import time

EVERY = 60.0
"""Seconds between two logged messages of one kind. A fault in every request would fill the log."""


class Throttle:
    """Lets one message of each kind through in `EVERY` seconds."""

    def __init__(self) -> None:
        self._let_through: dict[str, float] = {}

    def allows(self, kind: str = "", now: float | None = None) -> bool:
        """Whether a message may be logged now; if so, it counts as logged.

        Args:
            kind: the message's kind. Few kinds may occur within `EVERY`.
            now: monotonic time; None: the present.
        """
        now = time.monotonic() if now is None else now
        if now - self._let_through.get(kind, float("-inf")) < EVERY:
            return False
        # Kinds that do not occur again must not accumulate.
        self._let_through = {kind: at for kind, at in self._let_through.items() if now - at < EVERY}
        self._let_through[kind] = now
        return True
