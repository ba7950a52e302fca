"""`make soak`: jobs with one random fault each, and healthy jobs: who is named, when survivors are freed, what is left.

    python benchmarks/faults.py [--runs 60] [--seed 0] [--stall 2] [--kinds kill,stop,...]

Each run is a job of four ranks under two torchruns, with DDP on gloo and OTEL_FR_ON_PEER_FAILURE=abort, and a collector
of its own behind a relay that can be cut. One rank of the second torchrun is the victim. A survivor is freed when its
step ends with an error; only those of the first torchrun are timed, since the second ends its own ranks when one fails.

The table has for each fault: jobs in which the victim was named, other causes named, calls ended in healthy ranks,
seconds from the fault to the last survivor freed (median, 99th percentile), and processes and ring files left behind.
The exit status is 1 if a fault is not named, or if a figure that must be zero is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The tests are no installed package: the line above makes them importable.
from tests.support.collector_process import Collector, running  # noqa: E402
from tests.support.ports import free_port  # noqa: E402
from tests.support.processes import kill, monitor_of, processes_with  # noqa: E402
from tests.support.relay import Relay  # noqa: E402
from tests.support.waiting import until, wait_for  # noqa: E402

BIN = Path(sys.executable).parent
JOB = Path(__file__).with_name("jobs") / "faults.py"
NODES, RANKS_PER_NODE = 2, 2
SURVIVORS = (0, 1)
STARTED_SECONDS = 180.0
DONE_SECONDS = 60.0
"""Longest wait for the start of a job, and for the effect of its fault."""

RIGHT = {
    "kill": {"rank_dead"},
    "raise": {"rank_dead"},
    "stop": {"rank_stuck"},
    "gil": {"rank_stuck"},
    "section": {"section_overrun"},
    "sleep": {"missing_rank"},
    "sleep unheard": {"missing_rank"},
    "stop unseen": {"rank_stuck"},
    "network": set[str](),
    "monitor": set[str](),
    "none": set[str](),
}
"""Fault -> the right categories; empty: no incident may open.

``stop unseen``: the victim is stopped while the collector is cut off. ``network``: the collector is cut off for a
while. ``monitor``: the victim's monitor is killed. ``sleep unheard``: the monitor is stopped, the victim is only slow.
"""
MONITOR_SIGNALS = {"monitor": signal.SIGKILL, "sleep unheard": signal.SIGSTOP}
UNSEEN_SECONDS = 8.0
"""Seconds for which the collector is cut off: longer than ``OTEL_FR_PEER_TIMEOUT``, so that all ranks fall silent."""
FREES = {"kill", "raise", "stop", "stop unseen", "gil", "section"}
"""Faults after which survivors must be freed. After other faults, the job must finish."""


@dataclass
class Outcome:
    """One run.

    Attributes:
        freed: seconds from the fault until the last survivor was freed; None: some were not, or need not be.
        too_early: survivors that were freed while the collector was cut off.
        monitor: process id of the victim's monitor, if a signal was sent to it.
    """

    kind: str
    causes: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    freed: float | None = None
    freed_ranks: int = 0
    too_early: int = 0
    finished: bool = False
    named: bool = False
    leftovers: list[str] = field(default_factory=list)
    monitor: int = 0
    output: str = ""

    @property
    def wrong(self) -> int:
        """The number of causes besides the fault."""
        return len(self.causes) - int(self.named)

    @property
    def is_right(self) -> bool:
        ends = self.freed is not None if self.kind in FREES else self.finished and not self.freed_ranks
        said = self.named if RIGHT[self.kind] else True
        return ends and said and not self.wrong and not self.too_early and not self.leftovers


class Job:
    """A running job, and the messages of its ranks."""

    def __init__(self, kind: str, victim: int, step: int, env: dict[str, str]) -> None:
        port = free_port()
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.processes = []
        for node in range(NODES):
            command = [str(BIN / "torchrun"), f"--nnodes={NODES}", f"--nproc_per_node={RANKS_PER_NODE}"]
            command += [f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}"]
            command += [str(JOB), kind, str(victim), str(step)]
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            self.processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._news:
                self.lines.append(line)
                if line.startswith("FAULTS "):
                    self.events.append(json.loads(line.removeprefix("FAULTS ")))
                self._news.notify_all()

    def wait(self, seconds: float, count: int, event: str, ranks: tuple[int, ...] = ()) -> bool:
        """Wait for so many of these events. Returns False if they did not come, or the job ended without them."""
        with self._news:
            return self._news.wait_for(lambda: len(self.of(event, ranks)) >= count, seconds)

    def of(self, event: str, ranks: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event and (not ranks or one["rank"] in ranks)]

    def end(self) -> None:
        """Kill all processes that still run, including stopped ranks."""
        for pid in [*(process.pid for process in self.processes), *(one["pid"] for one in self.of("ready"))]:
            kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextmanager
def _collector(folder: Path) -> Iterator[tuple[Collector, Relay]]:
    with running(folder, "--grpc", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}") as collector:
        host, port = collector.grpc.rsplit(":", 1)
        with Relay(host, int(port)) as relay:
            yield collector, relay


def run(kind: str, seed: int, stall: float) -> Outcome:
    """Run one job. ``seed`` chooses the victim and its step."""
    rng = random.Random(seed)
    victim, step = rng.randrange(RANKS_PER_NODE, NODES * RANKS_PER_NODE), rng.randrange(3, 8)
    outcome = Outcome(kind)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        rings = folder / "rings"
        collector, relay = stack.enter_context(_collector(folder / "collector"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        env |= {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{relay.port}",
            "OTEL_FR_JOB_ID": f"soak-{os.getpid()}-{seed}",
            "OTEL_FR_STALL_SECONDS": str(stall),
            "OTEL_FR_ON_PEER_FAILURE": "abort",
            "OTEL_FR_RING_DIR": str(rings),
            "OTEL_FR_DUMP_DIR": str(folder / "dumps"),
        }
        if kind == "sleep unheard":
            env["OTEL_FR_PEER_TIMEOUT"] = str(stall)
        job = Job(kind, victim, step, env)
        try:
            _follow(job, kind, victim, outcome, relay, rings)
            if RIGHT[kind]:
                _await_verdict(collector, RIGHT[kind], victim)
            causes = collector.causes()
        finally:
            job.end()
            if kind == "sleep unheard" and outcome.monitor:
                kill(outcome.monitor, signal.SIGCONT)
        outcome.output = "".join(job.lines)
        outcome.causes = [(one["category"], tuple(one["culprit_ranks"])) for one in causes]
        outcome.named = any(category in RIGHT[kind] and ranks == (victim,) for category, ranks in outcome.causes)
        wait_for(lambda: not processes_with(str(rings)), DONE_SECONDS)
        # The ring of a rank that did not end cleanly stays, as evidence.
        outcome.leftovers = [f"process {pid}" for pid in processes_with(str(rings))]
        if kind not in FREES:
            outcome.leftovers += [str(path) for path in rings.rglob("*") if path.is_file()]
    return outcome


def _follow(job: Job, kind: str, victim: int, outcome: Outcome, relay: Relay, rings: Path) -> None:
    if not job.wait(STARTED_SECONDS, NODES * RANKS_PER_NODE, "ready"):
        raise SystemExit("the job did not start:\n" + "".join(job.lines))
    if kind == "network":
        relay.cut(3.0)
    elif kind in MONITOR_SIGNALS:
        (ready,) = job.of("ready", (victim,))
        outcome.monitor = until(lambda: monitor_of(ready["pid"], rings))
        kill(outcome.monitor, MONITOR_SIGNALS[kind])
    if kind in FREES:
        job.wait(DONE_SECONDS, 1, "fault")
        if kind == "stop unseen":
            relay.cut(UNSEEN_SECONDS)
            outcome.too_early = len(job.of("freed"))
        job.wait(DONE_SECONDS, len(SURVIVORS), "freed", SURVIVORS)
        freed = job.of("freed", SURVIVORS)
        if len(freed) == len(SURVIVORS):
            outcome.freed = max(one["at"] for one in freed) - job.of("fault")[0]["at"]
    else:
        job.wait(DONE_SECONDS, NODES * RANKS_PER_NODE, "finished")
        outcome.finished = all(process.wait(DONE_SECONDS) == 0 for process in job.processes)
    outcome.freed_ranks = len(job.of("freed"))


def _await_verdict(collector: Collector, categories: set[str], victim: int) -> None:
    """Wait for the verdict. It comes a moment after the survivors are freed if gloo itself frees them."""
    wait_for(
        lambda: any(one["category"] in categories and one["culprit_ranks"] == [victim] for one in collector.causes()),
        DONE_SECONDS / 4,
    )


def _row(kind: str, outcomes: list[Outcome]) -> list[object]:
    freed = sorted(one.freed for one in outcomes if one.freed is not None)
    return [
        kind,
        len(outcomes),
        f"{sum(one.named for one in outcomes)}" if RIGHT[kind] else "-",
        sum(one.wrong for one in outcomes),
        sum(one.too_early if kind in FREES else one.freed_ranks for one in outcomes),
        f"{statistics.median(freed):.1f}" if freed else "-",
        f"{freed[min(len(freed) - 1, int(0.99 * len(freed)))]:.1f}" if freed else "-",
        sum(len(one.leftovers) for one in outcomes),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stall", type=float, default=2.0, help="OTEL_FR_STALL_SECONDS of the jobs")
    parser.add_argument("--kinds", default=",".join(RIGHT), help="faults, taken in turn")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    outcomes: list[Outcome] = []
    for number in range(args.runs):
        outcome = run(kinds[number % len(kinds)], args.seed + number, args.stall)
        outcomes.append(outcome)
        freed = "" if outcome.freed is None else f", survivors freed after {outcome.freed:.1f} s"
        print(
            f"{number + 1:3} {outcome.kind:13} {'right' if outcome.is_right else 'WRONG'} {outcome.causes}{freed}",
            flush=True,
        )
        if not outcome.is_right:
            print("    " + "    ".join(outcome.output.splitlines(keepends=True)[-40:]), outcome.leftovers, flush=True)
    headers = ["fault", "runs", "named", "wrong", "ended in vain", "freed p50 s", "p99 s", "left behind"]
    rows = [_row(kind, own) for kind in kinds if (own := [one for one in outcomes if one.kind == kind])]
    print("\n" + tabulate(rows, headers=headers))
    sys.exit(0 if all(one.is_right for one in outcomes) else 1)


if __name__ == "__main__":
    main()
