"""Asks PyTorch's recorder in the rank, in a separate thread, how far the device is with the calls.

The rank's server answers from a C++ thread. It holds the recorder's lock while it copies the entries, and a call that
is recorded meanwhile waits for this lock. So the recorder is asked no more often than needed.
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
"""Longest wait for an answer. An answer takes some milliseconds, but a driver that hangs may block it forever."""
MOVING_SECONDS: Final = 1.0
"""Time between two requests while calls are enqueued or in flight: as often as a rank reports."""
SHARE: Final = 0.02
"""Largest share of a core's time for requests: half here, and half in the rank, which is assumed to need as much time
as measured here. So the recorder is asked less often if its answers are longer."""
MAX_FAILURES: Final = 5
"""After this many successive requests without an answer, the recorder counts as lost: its calls are unknown again."""
LOST_SECONDS: Final = 60.0
"""Time between two requests once the recorder is lost."""


class Snapshot(NamedTuple):
    """An answer of the recorder.

    Attributes:
        asked_ns: monotonic time before the request. The entries include calls enqueued earlier, unless overwritten.
        wall_offset_ns: wall clock minus monotonic clock at this time.
        entries: the entries, oldest first.
        library: NCCL's version; "": unknown.
    """

    asked_ns: int
    wall_offset_ns: int
    entries: list[Entry]
    library: str


class RecorderClient:
    """Asks the recorder when its caller requests it.

    Args:
        path: path of the server's socket.
        wake: called in the thread when there is a result.

    Attributes:
        results: the result of each request; None: no answer.
        is_lost: True if the last `MAX_FAILURES` requests had no answer.
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
        """True if a request has not been answered yet, or its result was not taken."""
        return self._is_busy or not self.results.empty()

    def ask(self, now: float, *, soon: bool = False, at_once: bool = False) -> bool:
        """Ask, unless a request is being answered or the last one was too recent. Never waits. Return True if it asks.

        Args:
            now: monotonic seconds.
            soon: ask as soon as the costs of the last request allow.
            at_once: ask however recent the last request was.
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
            # CPU time counts, not only elapsed time: on a busy machine an answer takes longer but costs no more.
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
