"""How long a collector takes to answer /healthz while it does something else."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.collector_process import Collector

POLL_SECONDS = 0.05


def waited_for_processor(thread: Path) -> float:
    """Return the seconds in which a thread was ready, but others ran (Documentation/scheduler/sched-stats)."""
    try:
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class HealthWatch:
    """Asks /healthz again and again, in its own thread.

    Latencies do not include the time in which other programs kept the asking or the answering thread from a processor.

    Attributes:
        latencies: seconds, one for each answer.
    """

    def __init__(self, collector: Collector) -> None:
        self.latencies: list[float] = []
        self._collector = collector
        self._end = threading.Event()

    @property
    def slowest(self) -> float:
        return max(self.latencies, default=0.0)

    def percentile(self, share: float) -> float:
        """Return the latency that this share of the answers did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def ask(self) -> float:
        """Ask once, and return the latency."""
        pid = self._collector.process.pid
        threads = (Path(f"/proc/{pid}/task/{pid}"), Path(f"/proc/self/task/{threading.get_native_id()}"))
        begun, waited = time.monotonic(), sum(map(waited_for_processor, threads))
        with contextlib.suppress(OSError):
            urllib.request.urlopen(self._collector.http + "/healthz", timeout=60).read()
        took = max(0.0, time.monotonic() - begun - (sum(map(waited_for_processor, threads)) - waited))
        self.latencies.append(took)
        return took

    def _run(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            self.ask()

    def end(self) -> None:
        """Stop asking. The request in flight still counts."""
        self._end.set()

    @contextlib.contextmanager
    def running(self) -> Iterator[HealthWatch]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.end()
            thread.join()
