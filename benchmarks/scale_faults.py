"""Faults of a job of 100,000 ranks on one collector, and the collector's incidents.

    python benchmarks/scale_faults.py [--ranks 100000] [--only NAME ...]

The ranks are simulated as in `benchmarks.scale`. A case is good if only the faulty ranks are named, each fault is told
once, and the collector's memory stays below 2 GB. Seconds are wall time, which is longer on a busy machine. Seconds and
memory are printed as a table for benchmarks/RESULTS.md. The exit status is 1 if a case is not good.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from otel_fr_collector import timeline

from benchmarks.measured import collector
from benchmarks.scale import TICK, Incidents, batch_size, batches_of, begin, connected
from benchmarks.simulated_ranks import Batch, Job
from otel_fr.presentation import count_text
from tests.support.verdicts import cause_incidents

AFTER = 20.0
"""Seconds after a rank was named in which the collector may report more."""
GIVE_UP = 90.0
AWAY = 20.0
"""Seconds for which connections stay lost."""
MOST_MEMORY = 2_000.0
"""Limit of the collector's memory, in MB."""


@dataclass
class Outcome:
    """The result of a case.

    Attributes:
        named_s: seconds from the fault, or the collector's start, to the incident. said: beginnings of the causes.
        twice: incidents that were opened more than once. notes: further facts.
    """

    case: str
    named_s: float | None
    said: list[str]
    culprits: set[int]
    twice: int
    memory_mb: float
    notes: str
    is_good: bool


class Site:
    """A collector and the ranks of jobs. The first job has the fault."""

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self._folder = folder
        self._options = ("--job-memory", "768MiB", "--data", str(folder / "data"))
        self.server = collector(folder, *self._options)
        self.incidents = Incidents(folder / "incidents.jsonl")
        self.batches = batches_of(self.jobs, batch_size(self.jobs[0].world), timeline.REPORT_INTERVAL)
        self.highest = 0.0

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Return the incidents that are no consequences."""
        return cause_incidents(self.incidents.latest.values())

    def step(self, skipped_at: float | None, batches: Sequence[Batch]) -> None:
        """Send the reports that are due, and read the incidents.

        Args:
            skipped_at: when the first job came to a stop (monotonic); None: it moves.
        """
        now = time.monotonic()
        for batch in batches:
            batch.step(now, skipped_at if batch.job is self.jobs[0] else None)
        self.incidents.opened()
        time.sleep(TICK)

    def watch(self, seconds: float, skipped_at: float | None, batches: Sequence[Batch] | None = None) -> None:
        """Send for so many seconds. ``batches``: only these send; None: all."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step(skipped_at, self.batches if batches is None else batches)

    def named_after(self, since: float, skipped_at: float, batches: Sequence[Batch] | None = None) -> float | None:
        """Return the seconds from ``since`` until a rank is named; None: none was. Sends for `AFTER` seconds more."""
        named = None
        while named is None and time.monotonic() < since + GIVE_UP:
            self.step(skipped_at, self.batches if batches is None else batches)
            if any(one["culprit_ranks"] for one in self.causes):
                named = round(time.monotonic() - since, 1)
        self.watch(AFTER, skipped_at, batches)
        return named

    def restart(self) -> float:
        """Kill the collector, and start it again at its address. Returns when it takes requests (monotonic)."""
        self.highest = max(self.highest, self.server.memory())
        self.server.process.kill()
        self.server.process.wait()
        self.server = collector(self._folder, *self._options, address=self.server.address)
        return time.monotonic()

    def outcome(self, case: str, truth: set[int], named_s: float | None, notes: str = "") -> Outcome:
        """Return the outcome of a case. ``truth``: the faulty ranks."""
        said = [f"{one['category']}: {one['summary']}"[:110] for one in self.causes]
        culprits = {rank for one in self.causes for rank in one["culprit_ranks"]}
        memory = round(max(self.highest, self.server.memory()))
        twice = self.incidents.twice
        good = bool(culprits) and culprits <= truth and not twice and memory < MOST_MEMORY
        return Outcome(case, named_s, said, culprits, twice, memory, notes, good)


@contextlib.contextmanager
def _running(*jobs: Job) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name), jobs)
        try:
            with connected(site.server, site.batches):
                begin(site.batches, site.jobs)
                yield site
        finally:
            site.server.stop()


def killed(case: str, ranks: int) -> Outcome:
    """A tenth of the ranks is killed at once. The others wait."""
    job = Job(ranks)
    with _running(job) as site:
        lost = [one for at, one in enumerate(site.batches) if at % 10 == 9 or one is site.batches[-1]]
        left = [one for one in site.batches if one not in lost]
        since = time.monotonic()
        for one in lost:
            one.kill()
        named = site.named_after(since, since, left)
        truth = {rank for one in lost for rank in one.ranks}
        return site.outcome(case, truth, named, f"{len(truth):,} ranks killed")


def silent(case: str, ranks: int) -> Outcome:
    """Half of the connections are lost and come back, while the job is healthy. Then a rank leaves out a call."""
    job = Job(ranks)
    with _running(job) as site:
        site.watch(AWAY, None, site.batches[::2])
        site.watch(AWAY, None)
        false = len(site.incidents.latest)
        since = time.monotonic()
        named = site.named_after(since, since)
        return site.outcome(case, {job.culprit}, named, f"{false} incidents while the job was healthy")


def restarted(case: str, ranks: int) -> Outcome:
    """The collector is killed and started again during the stall, before and after the rank is named."""
    job = Job(ranks)
    with _running(job) as site:
        skipped = time.monotonic()
        site.watch(3.0, skipped)
        named = site.named_after(site.restart(), skipped)
        site.restart()
        site.watch(AFTER, skipped)
        return site.outcome(case, {job.culprit}, named, "counted from the start of the collector")


def halves(case: str, ranks: int) -> Outcome:
    """Two jobs with half of the ranks each. In the first, a rank leaves out a call."""
    jobs = Job(ranks // 2, 0), Job(ranks // 2, 1)
    with _running(*jobs) as site:
        since = time.monotonic()
        return site.outcome(case, {jobs[0].culprit}, site.named_after(since, since))


def local(case: str, ranks: int) -> Outcome:
    """A rank leaves out a call of its group of eight. All ranks outside wait in the next call of the world."""
    job = Job(ranks, is_local=True)
    with _running(job) as site:
        since = time.monotonic()
        return site.outcome(case, {job.culprit}, site.named_after(since, since))


def apart(case: str, ranks: int) -> Outcome:
    """Each rank is the first rank of its own group, which makes more groups than the collector keeps."""
    job = Job(ranks, own_groups=True)
    with _running(job) as site:
        since = time.monotonic()
        named = site.named_after(since, since)
        refused = site.server.metric("otel_fr_collector_capacity_exceeded_total")
        return site.outcome(case, {job.culprit}, named, f"{refused:,.0f} values not kept")


CASES: dict[str, Callable[[str, int], Outcome]] = {
    "a tenth of the ranks killed at once": killed,
    "half of the connections lost for 20 s": silent,
    "the collector restarts in the stall": restarted,
    "two jobs of half of the ranks": halves,
    "a stall of one group of eight": local,
    "a group for each rank": apart,
}


def table(outcomes: Sequence[Outcome], ranks: int) -> str:
    """Return the table for benchmarks/RESULTS.md."""
    rows = [f"| {ranks:,} ranks | named after | told | highest memory |", "|---|---|---|---|"]
    for one in outcomes:
        named = "nobody" if one.named_s is None else f"{one.named_s} s"
        told = f"{count_text(len(one.said), 'cause')}, {count_text(len(one.culprits), 'rank')}; {one.twice} twice"
        rows.append(
            f"| {one.case} | {named} | {told}{'; ' if one.notes else ''}{one.notes} | {one.memory_mb:,.0f} MB |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=[one.__name__ for one in CASES.values()], help="these cases")
    options = parser.parse_args()
    outcomes = []
    for case, play in CASES.items():
        if options.only is None or play.__name__ in options.only:
            outcomes.append(play(case, options.ranks))
            print(f"{'good' if outcomes[-1].is_good else 'BAD'}: {case}", *outcomes[-1].said, sep="\n  ", flush=True)
    print(table(outcomes, options.ranks))
    return 0 if all(one.is_good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
