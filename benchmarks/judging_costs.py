"""CPU time of a verdict on one large job in the collector: one rank is missing, and all others wait.

    python benchmarks/judging_costs.py [--ranks 16384] [--rounds 3]

All runs in this process, without gRPC. The ranks send full reports, then reports that they stand still, and then
reports of their waits. Then three parts run several times: the look for waits, the snapshot of the state, and the
verdict. The figures are the thread's CPU time, which is longer on a busy machine. Python's garbage collector is set as
in the collector.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from otel_fr_collector.garbage import GarbageCollection
from otel_fr_collector.incidents.triggers import look_at_waits
from otel_fr_collector.jobs.ingest import Ingest
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS

from benchmarks.simulated_ranks import BATCH, CALLS, NUMBER, Job, placed
from otel_fr import semconv
from otel_fr.match import diagnose

START, STEADY, JUDGED = 1_000.0, -20.0, 4.6
"""The skip, on the collector's clock; seconds from it to the full reports, and to the verdict."""


KEPT = 512 << 20
"""Most bytes of the run, enough for 100,000 ranks."""


def stalled(job: Job) -> Run:
    """Return the run as the collector knows it once the wait is long enough."""
    now = [START]
    runs = Runs(most=KEPT)
    ingest = Ingest(runs, Metrics(), lambda: now[0], lambda: 1e9 + now[0])
    told = [rank for rank in range(job.world) if rank == job.culprit or job.is_witness(rank)]
    others = sorted(set(range(job.world)) - set(told))
    parts = [[rank] for rank in told] + [others[at : at + BATCH] for at in range(0, len(others), BATCH)]
    loop = asyncio.new_event_loop()
    rounds = ((STEADY, False, False), (1.0, True, True), (3.0, True, False), (4.4, True, False))
    garbage = None
    for number, (still, skipped, brief) in enumerate(rounds, NUMBER + 1):
        now[0] = START + still
        for part in parts:
            is_brief = brief or (skipped and part[0] not in told)
            data = job.request(part, semconv.EVENT_PROGRESS, skipped=skipped, brief=is_brief)
            data = placed(data, number, CALLS, max(still, 0.0), int(1e18 + 1e9 * now[0]))
            loop.run_until_complete(ingest.take(LOGS, data))
        garbage = garbage or GarbageCollection(now[0])
    loop.close()
    (run,) = runs.by_id.values()
    return run


def measure(job: Job, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield each part of the work, and its seconds.

    Raises:
        RuntimeError: the verdict is wrong.
    """
    run = stalled(job)
    for _ in range(rounds):
        begun = time.thread_time()
        look_at_waits(run, START + JUDGED)
        yield "look", time.thread_time() - begun
        begun = time.thread_time()
        taken = snapshot(run, START + JUDGED)
        yield "state", time.thread_time() - begun
        begun = time.thread_time()
        findings = diagnose(taken.evidence())
        yield "verdict", time.thread_time() - begun
        culprits = {rank for finding in findings for rank in finding.culprit_ranks}
        if culprits != {job.culprit}:
            raise RuntimeError(f"ranks {sorted(culprits)[:9]} are named")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for name, seconds in measure(Job(options.ranks), options.rounds):
        found.setdefault(name, []).append(seconds)
    print("| what | ms of CPU |\n|---|---|")
    for name, every in found.items():
        print(f"| {name} | {', '.join(f'{1e3 * one:.0f}' for one in every)} |")


if __name__ == "__main__":
    main()
