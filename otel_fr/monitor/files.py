"""Requests the rank's flight-recorder files, and reports which were written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.dumps.write import RECOVERED
from otel_fr.monitor import dumping, rules
from otel_fr.monitor.nccl.ras_client import RasWatch
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import ReportedExit
from otel_fr.ring import RingReader

_log = logging.getLogger("otel_fr.monitor")

END_SECONDS = 30.0
"""Longest wait for the last file. The rank's pipes are closed by then, so a slow disk blocks nothing else."""
_LOOK_SECONDS = 0.02

REASON_REQUEST, REASON_SIGNAL = "request", "signal"
_ASKED_FOR = (REASON_REQUEST, REASON_SIGNAL)


class Files:
    """
    Args:
        ras: asked when a file is written for a fault, or on request, in a job that uses NCCL.
        wake: called from another thread when a file is finished.

    Attributes:
        last: path of the newest file of the rank's present run; "": there is none.
        exit: how the rank ended, once known. Files contain it.
    """

    def __init__(
        self,
        ring: Path,
        reader: RingReader,
        config: Config,
        reporter: Reporter,
        ras: RasWatch,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._reporter = reporter
        self._ras = ras
        self._dumper = dumping.Dumper(ring, dumping.process_start_wall_ns(reader.pid_start_ns), wake)
        self._recovery = rules.Recovery()
        self._quorum: int | None = None
        self._bad: set[str] = set()
        self.last = ""
        self.exit: ReportedExit | None = None

    def write(self, reason: str, *, urgent: bool = False, of_fault: bool = False, patient: bool = False) -> None:
        """Write the file soon.

        Args:
            urgent, patient: see `dumping.Request`.
            of_fault: it shows a fault. A newer file replaces it once the fault is over.
        """
        run = self._reporter.run
        self._recovery.note_file(run.moved_ns, of_fault)
        self._quorum = run.identity.quorum
        run.groups.refresh()
        named = partial(dumping.paths, self._config, run.identity, run.groups.backends)
        if (of_fault or reason in _ASKED_FOR) and any("nccl" in backend for backend in run.groups.backends):
            self._ras.ask(lambda: named()[0][0].parent, time.monotonic(), run.identity.run_id)
        info = dumping.rank_info(self._reporter)
        if self.exit is not None:
            info["exit"] = rank_report.to_object(self.exit)
        self._dumper.request(dumping.Request(reason, info, named, urgent, self._reporter.devices.seen(), patient))

    def step(self, situation: rules.Situation) -> None:
        """Replace the file if the fault that it shows is over."""
        is_over = self._recovery.is_over(situation, self._config.stall_seconds)
        if is_over and self._reporter.run.identity.quorum == self._quorum:
            self.write(RECOVERED)

    @property
    def is_busy(self) -> bool:
        """True while a file is being written or waits to be written."""
        return self._dumper.busy()

    @property
    def shows_fault(self) -> bool:
        """True if the newest file was written for a fault."""
        return self._recovery.is_pending

    def shows_present_fault(self) -> bool:
        """Return True if the newest file was written for a fault and the rank has not moved since."""
        return self._recovery.is_of(self._reporter.run.moved_ns)

    def report(self, exit_: ReportedExit | None = None) -> list[dumping.Result]:
        """Report the files that were written, or failed, since the last call. The reports contain ``exit_``."""
        results: list[dumping.Result] = []
        while not self._dumper.results.empty():
            result = self._dumper.results.get()
            results.append(result)
            if not result.superseded:
                self._report(result, exit_)
        return results

    def _report(self, result: dumping.Result, exit_: ReportedExit | None) -> None:
        path = str(result.path)
        event = names.EVENT_DUMP_FAILED if result.error else names.EVENT_DUMP_WRITTEN
        if not result.error:
            self.last = path
            self._bad.discard(path)
        elif path not in self._bad:
            self._bad.add(path)
            _log.error("no flight-recorder file: %s", result.error)
        self._reporter.send(event, file=path, reason=result.reason, error=result.error or "", exit=exit_)

    def write_last(self, reason: str, exit_: ReportedExit | None = None) -> bool:
        """Write the file that outlives the ring, and wait for it. Return True if it was written.

        Args:
            exit_: how the rank ended, for the report.
        """
        self.write(reason, urgent=True)
        deadline = time.monotonic() + END_SECONDS
        while self.is_busy and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        results = [result for result in self.report(exit_) if result.reason == reason]
        return bool(results) and not any(result.error for result in results)
