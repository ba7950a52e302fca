"""Asks PyTorch's recorder in the rank, in a thread of its own, how far the device is with the calls.

The rank's server answers from a thread of C++ and holds the recorder's lock while it copies the entries, which a call
that is recorded meanwhile waits for. So it is asked no more often than needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

from otel_fr.monitor.nccl.recorder_entries import MAX_BYTES, Entry, parse_answer
from otel_fr.timed_http import ask_unix
from otel_fr.torch_recorder import DUMP_TARGET

_log = logging.getLogger("otel_fr.monitor")

ANSWER_SECONDS: Final = 3.0
"""Longest wait for an answer. It takes some milliseconds; a driver that does not answer may block it for ever."""
MOVING_SECONDS: Final = 1.0
"""Between two requests while calls are being enqueued or are in flight: as often as a rank reports."""
SHARE: Final = 0.02
"""Of a core's time that may be spent in it, half of it in the rank, which is taken to spend as much as is measured
here: a longer answer is asked for less often."""
MAX_FAILURES: Final = 5
"""Requests in a row without an answer after which the recorder counts as lost: its calls are unknown again."""
LOST_SECONDS: Final = 60.0
"""Between two requests once it is lost."""


class Snapshot(NamedTuple):
    """What the recorder held.

    Attributes:
        asked_ns: monotonic, before it was asked: calls enqueued before that are among the entries, unless overwritten.
        wall_offset_ns: wall clock minus monotonic clock at that moment.
        entries: oldest first. library: NCCL's version, as it says it; "": not known.
    """

    asked_ns: int
    wall_offset_ns: int
    entries: list[Entry]
    library: str


class RecorderClient:
    """Asks when its caller says so.

    Args:
        path: of the server's socket. wake: called in the thread when there is a result.

    Attributes:
        results: what came of each request, None where there was no answer.
        is_lost: the last `MAX_FAILURES` requests had no answer.
    """

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path = path
        self._wake = wake
        self._asked = threading.Event()
        self._failures = 0
        self._is_busy = False
        self._not_before = self._soonest = 0.0
        self.results: SimpleQueue[Snapshot | None] = SimpleQueue()
        threading.Thread(target=self._run, name="otel-fr-recorder", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        return self._failures >= MAX_FAILURES

    @property
    def is_busy(self) -> bool:
        """A request has not been answered yet, or its result was not taken."""
        return self._is_busy or not self.results.empty()

    def ask(self, now: float, *, soon: bool = False, at_once: bool = False) -> bool:
        """Ask, unless a request is being answered or the last one was just now. Never waits.

        Args:
            now: monotonic seconds. soon: as soon as the last one's costs allow. at_once: however short ago it was.
        """
        not_before = self._soonest if soon else self._not_before
        if self._is_busy or (now < not_before and not at_once):
            return False
        self._is_busy = True
        self._asked.set()
        return True

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            started, cpu = time.monotonic(), time.thread_time()
            try:
                result: Snapshot | None = self._take()
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, the monitor continues without the recorder
                result = None
                self._failures += 1
                if self._failures == MAX_FAILURES:
                    _log.info("PyTorch's recorder does not answer: %s", error)
            now = time.monotonic()
            # On a busy machine an answer takes long and costs no more: its age would grow to many times the pause.
            costs = 2 * (time.thread_time() - cpu) / SHARE
            pause = LOST_SECONDS if self.is_lost else min(max(costs, now - started), LOST_SECONDS)
            self._soonest, self._not_before = now + pause, now + max(pause, MOVING_SECONDS)
            self.results.put(result)
            self._is_busy = False
            self._wake()

    def _take(self) -> Snapshot:
        asked_ns = time.monotonic_ns()
        offset = time.time_ns() - asked_ns
        body = ask_unix(self._path, "POST", DUMP_TARGET, seconds=ANSWER_SECONDS, most=MAX_BYTES)
        return Snapshot(asked_ns, offset, *parse_answer(body))
