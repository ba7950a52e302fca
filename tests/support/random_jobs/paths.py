"""Trials judged as users' jobs are: from flight-recorder files by the analyzer, and live by the collector.

Both start from real rings. The monitor's writer writes the files, and `otel_fr.analyze` reads them. Live, each rank's
`Reporter` follows its ring and builds spans and rank reports as in a monitor; a collector's ingest, judge and
incident book take them. Only processes, sockets and the clock are simulated.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.incidents.judge import Judge
from otel_fr_collector.incidents.return_grace import ReturnGrace
from otel_fr_collector.jobs.ingest import Ingest
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS, TRACES

import otel_fr.dumps.contents
import otel_fr.monitor.telemetry.rank_run
import otel_fr.monitor.telemetry.reporter
from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.analyze import UNDECIDED, load
from otel_fr.config import Config, SpanBatching
from otel_fr.dumps.write import DumpContents, write_dump
from otel_fr.match import Ending, Evidence, Finding
from otel_fr.monitor import rules
from otel_fr.monitor.dumping import rank_info
from otel_fr.monitor.process.processor_wait import ProcessorWait
from otel_fr.monitor.process.stacks import Stacks
from otel_fr.monitor.telemetry.export import Exporter, reports_request, spans_request
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.otlp_sender import Sender
from otel_fr.rank_report import ReportedExit
from tests.support.random_jobs.rings import CAPACITY, STALL, Clock, RankRing
from tests.support.random_jobs.scoring import Score, judge, score
from tests.support.random_jobs.simulation import NEVER
from tests.support.random_jobs.trials import Trial, is_visible, trial_with_ages

STEP = 0.25
"""Seconds between two readings of the rings, and so the shortest time between two reports of a rank and between two
judgements of a run."""

REPORTING = (otel_fr.monitor.telemetry.reporter, otel_fr.monitor.telemetry.rank_run)

UNTOLD_SECONDS = 2.5
"""Seconds between two reports of a rank that waits and is no witness."""

_MEMORY = Path("/dev/shm")
"""The folder for rings. Writing thousands of files to a disk would take most of the time."""


@dataclass(slots=True)
class Verdict:
    """The result of one path.

    Attributes:
        is_open: there are no findings, and the verdict says that calls in flight are open.
        accused: the culprits of every cause that was published at any time (live).
    """

    findings: list[Finding]
    evidence: Evidence
    is_open: bool = False
    accused: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The scores of one trial: in memory, from files and live.

    Attributes:
        strays: innocent ranks that an incident named at some time and that the last verdict does not name.
    """

    memory: Score
    files: Score
    live: Score
    strays: tuple[int, ...]

    @property
    def differs(self) -> bool:
        """True if the verdict from files or live is wrong or missing, and the verdict in memory is not."""
        return is_good(self.memory) and not (is_good(self.files) and is_good(self.live))


def is_good(score: Score) -> bool:
    return score.outcome not in ("wrong", "silent")


def compare_paths(trial: Trial) -> Comparison:
    """Judge the trial in all three ways. Calls have ages, as in otel-fr's own files and reports."""
    trial = trial_with_ages(trial)
    live, accused = judge_live(trial)
    named = {*live.named, *trial.fault.stops.away, trial.truth}  # a late rank is named until it arrives
    return Comparison(
        memory=judge(trial)[0], files=judge_files(trial), live=live, strays=tuple(sorted(accused - named))
    )


def judge_files(trial: Trial) -> Score:
    """Score the verdict on all ranks' files. Each is written at the rank's end or at the trial's moment."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        verdict = _from_files(trial, Path(folder))
    return _score(replace(trial, view=replace(trial.view, form="files")), verdict)


def judge_live(trial: Trial, *, in_crowd: bool = False) -> tuple[Score, set[int]]:
    """Score the incidents open at the trial's moment, or before a clean end; also return all ranks ever named.

    Args:
        in_crowd: as in a large job, one rank of each group reports its wait, and the others only when asked.
    """
    limits: dict[str, Any] = {"CROWD": 0, "WITNESSES": 1} if in_crowd else {"CROWD": rules.CROWD}
    memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, mock.patch.multiple(rules, **limits):
        verdict = asyncio.run(_Live(trial, Path(folder)).run())
    return _score(replace(trial, view=replace(trial.view, form="live")), verdict), verdict.accused


def _score(trial: Trial, verdict: Verdict) -> Score:
    seen = replace(trial, evidence=verdict.evidence)
    seen.visible = is_visible(trial.job, trial.fault, verdict.evidence)
    return score(seen, verdict.findings, verdict.is_open)


def _exit(ring: RankRing) -> ReportedExit:
    info = ring.info
    return ReportedExit(
        code=info.exit_code or 0, signal=info.signal or 0, is_clean=info.ending is Ending.CLEAN, is_known=True
    )


def _config(folder: Path) -> Config:
    return Config(job_id="job-7", stall_seconds=STALL, ring_dir=folder, dump_dir=folder)


# Files.


def _from_files(trial: Trial, folder: Path) -> Verdict:
    clock = Clock()
    capacity = min(trial.view.ring, CAPACITY) if trial.view.form == "files" else CAPACITY
    with clock.used_by(otel_fr.dumps.contents, *REPORTING):
        for rank in trial.job.calls:
            ring = RankRing(folder, trial, rank, clock, capacity)
            clock.now = min(trial.now, ring.ends_at)
            has_ended = ring.write()
            with ring.open() as reader:
                reporter = Reporter(reader, _config(folder), Exporter(None, None))
                reporter.follow(everything=True)
                reporter.remember_stacks(Stacks(site=ring.info.site, python_blocked=ring.info.python_blocked))
                reporter.new_thread_exception()
                info = rank_info(reporter)
                if has_ended:
                    info["exit"] = rank_report.to_object(_exit(ring))
                write_dump(
                    folder / f"dumps_{rank}", DumpContents.from_ring(reader, reason="stall", rank_info=info), "pickle"
                )
            ring.remove()
    analysis = load(folder, prefix="dumps_")
    assert analysis.run is not None
    assert not analysis.problems
    return Verdict(analysis.findings, analysis.run.evidence, analysis.status == UNDECIDED)


# Live.


class _Monitor:
    """Does what a rank's monitor does with its ring, one step at a time."""

    def __init__(self, folder: Path, trial: Trial, rank: int, clock: Clock, first_report: float) -> None:
        self.ring = RankRing(folder, trial, rank, clock)
        self.has_ended = False
        self._clock = clock
        self._reader = self.ring.open()
        self._exporter = Exporter(Sender(None, ""), Sender(None, ""))  # never started: `requests` takes what is queued
        self._reporter = Reporter(self._reader, _config(folder), self._exporter)
        # The ring's process is this one. Its waits for a processor are in real time and must not count.
        self._reporter.processor = ProcessorWait(self._reader.pid, folder)
        self._episodes = rules.Episodes()
        self._report_at = first_report
        self._spans_since = NEVER
        self._starts = True

    def step(self) -> None:
        now, reporter = self._clock.now, self._reporter
        if self.has_ended:
            return
        if self._starts:
            self._starts = False
            reporter.send(names.EVENT_STARTED)
        has_ended = self.ring.write()
        if now >= self._report_at:
            reporter.run.groups.refresh()
        failed = reporter.follow()
        situation = reporter.situation(self._clock.monotonic_ns())
        if reporter.new_thread_exception():
            reporter.send(names.EVENT_EXCEPTION, stacks=True)
        if has_ended:
            self._finish()
            return
        if self._episodes.new_stall(situation, STALL) is not None:
            self._ask(names.EVENT_STALLED)
        elif self._episodes.new_idle(situation, STALL):
            self._ask(names.EVENT_IDLE)
        interval = rules.report_interval(situation, STALL) if situation.is_witness else UNTOLD_SECONDS
        if now >= self._report_at or failed:
            reporter.send(names.EVENT_PROGRESS)
            self._report_at = now + interval
        self._report_at = min(self._report_at, now + interval)

    def report_in_full(self) -> None:
        """Report in full with the next step, as the collector asks."""
        self._reporter.forget_told()
        self._report_at = self._clock.now

    def _ask(self, event: str) -> None:
        info = self.ring.info
        self._reporter.remember_stacks(Stacks(site=info.site, python_blocked=info.python_blocked))
        self._reporter.send(event, stacks=True)

    def _finish(self) -> None:
        self.has_ended = True
        reporter, exit_ = self._reporter, _exit(self.ring)
        if reporter.new_exception():
            reporter.send(names.EVENT_EXCEPTION, stacks=True, exception=reporter.exception())
        reporter.run.groups.refresh()
        reporter.follow(everything=True)
        reporter.close_spans(self._clock.monotonic_ns(), exit_.is_clean)
        reporter.send(names.EVENT_EXITED, stacks=True, exit=exit_, exception=reporter.exception())

    def requests(self) -> list[tuple[str, bytes]]:
        """Return the requests to send now: reports at once, spans a second later or at the rank's end."""
        found: list[tuple[str, bytes]] = []
        while reports := self._exporter.reports.take():
            found.append((LOGS, reports_request(reports).SerializeToString()))
        now, spans = self._clock.now, self._exporter.spans
        if len(spans):
            self._spans_since = min(self._spans_since, now)
        if self.has_ended or now - self._spans_since >= SpanBatching().delay:
            self._spans_since = NEVER
            while len(spans):
                _, chunks, resource = spans.take()
                found.append((TRACES, spans_request(resource, chunks).SerializeToString()))
        return found

    def close(self) -> None:
        self._reader.close()
        self.ring.remove()


class _Live:
    """One job with its monitors, and a collector."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._trial = trial
        self._clock = Clock()
        clock, metrics = self._clock, Metrics()
        self._runs, self._accused = Runs(), set[int]()
        self._book = IncidentBook(clock.time)
        self._ingest = Ingest(self._runs, metrics, clock.monotonic, clock.time)
        self._judge = Judge(
            self._runs, self._book, ReturnGrace(clock.monotonic()), metrics, self._publish, clock.monotonic, clock.time
        )
        rng = random.Random(trial.seed)
        with clock.used_by(*REPORTING):
            self._by_rank = {
                rank: _Monitor(folder, trial, rank, clock, rng.uniform(0.0, rules.REPORT_SECONDS))
                for rank in trial.job.calls
            }

    def _publish(self, changes: list[IncidentChange], now: float) -> None:
        for change in changes:
            if change.incident.cause is None:
                self._accused.update(change.incident.finding.culprit_ranks)

    async def run(self) -> Verdict:
        """Play the job up to the trial's moment, and return the verdict."""
        with self._clock.used_by(*REPORTING):
            while self._clock.now < self._trial.now:
                self._clock.now = min(self._clock.now + STEP, self._trial.now)
                for monitor in self._by_rank.values():
                    monitor.step()
                    for signal, data in monitor.requests():
                        await self._ingest.take(signal, data)
                self._judge.step(self._clock.monotonic())
                while self._judge._aside:
                    await asyncio.sleep(0.001)
                for run in self._runs.by_id.values():
                    for rank in run.to_ask:
                        self._by_rank[rank].report_in_full()
                    run.to_ask.clear()
        for monitor in self._by_rank.values():
            monitor.close()
        (run,) = self._runs.by_id.values()
        told = [one for one in self._book.known() if one.is_open or run.ended_clean]  # a clean end resolves all
        found = [replace(one.finding, caused_by=one.cause) for one in told]
        findings = sorted(found, key=lambda finding: finding.caused_by is not None)
        return Verdict(findings, snapshot(run, self._clock.monotonic()).evidence(), accused=self._accused)
