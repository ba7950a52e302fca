"""Standard output and standard error that never block, even if the program that reads them has stopped reading."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TextIO

from otel_fr_collector.metrics import Metrics
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_TEXTS = 4_096
"""Texts (log lines, printed incidents) that wait for the reader of one stream. Further texts are dropped."""
MAX_CHARACTERS = 4 << 20
"""Characters of these texts together. A single text may have more."""
DRAIN_SECONDS = 1.0
"""Seconds for writing the waiting texts when the process ends."""

_streams: list[Unblocked] = []


class Unblocked:
    """Writes to a text stream in a thread of its own. Texts wait in a queue; if it is full, they are dropped.

    A text that the stream refuses (closed, disk full) is dropped, too. Both are counted.

    Args:
        name: ``stdout`` or ``stderr``, in metrics and the log.
    """

    def __init__(self, stream: TextIO, name: str, metrics: Metrics) -> None:
        self._stream = stream
        self._name = name
        self._dropped = metrics.output_dropped.labels(name)
        self._texts: deque[str] = deque()
        self._size = 0
        self._lost = 0
        self._is_writing = False
        self._changed = threading.Condition()
        self._log = Throttle()
        threading.Thread(target=self._run, name=f"otel-fr {name}", daemon=True).start()
        _streams.append(self)

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Queue a text, or drop it."""
        with self._changed:
            if len(self._texts) >= MAX_TEXTS or (self._size and self._size + len(text) > MAX_CHARACTERS):
                self._lost += 1
                self._dropped.inc()
            else:
                self._texts.append(text)
                self._size += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes, and `drain` waits for it."""

    def drain(self, seconds: float) -> None:
        """Wait until all is written, for ``seconds`` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._texts and not self._is_writing, seconds)

    def _has_room(self) -> bool:
        """Whether there is room for the message about dropped texts, and for more."""
        return len(self._texts) < MAX_TEXTS // 2 and self._size < MAX_CHARACTERS // 2

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._texts))
                text = self._texts.popleft()
                self._size -= len(text)
                self._is_writing = True
                lost = self._lost if self._lost and self._has_room() and self._log.allows() else 0
                self._lost -= lost
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                self._dropped.inc()
            if lost:
                _log.warning("dropped %d lines of %s: nothing read them", lost, self._name)


def drain(seconds: float = DRAIN_SECONDS) -> None:
    """Wait until all streams have written their texts, for ``seconds`` at most."""
    end = time.monotonic() + seconds
    for stream in _streams:
        stream.drain(max(0.0, end - time.monotonic()))
