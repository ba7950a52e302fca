"""What otel-fr adds to real training steps on gloo with 2 ranks: DDP, FSDP2, and a tensor-parallel loop.

    python benchmarks/steps.py [--kinds ddp fsdp2 tp] [--rows compiled ...] [--minutes 15] [--launches 2]
        [--width 512] [--batch 64] [--device cuda | fake] [--ranks 1]

Jobs run side by side and take turns: while one runs a block of steps (0.15 s), the others wait. So other load on the
machine affects all alike.

* A recorded job (one for each capture engine; with its monitors, which send to a collector) runs four blocks each turn:
  with recording, twice without, with recording again, or the other way around, so that steady changes cancel out. The
  cost is their ratio: of the CPU time of the training thread (backward runs in it, too), of the CPU time of all the
  rank's threads (including gloo's, which call back at the end of a call), and of the elapsed time. Without recording,
  the kernels of the compiled engine are installed, but idle: benchmarks/capture.py measures their cost.
* A job with PyTorch's own recorder, and a job with `FlightRecorderHook` if torch has it, are compared with a job that
  records nothing. A second job that records nothing is compared, too: it shows differences that mean nothing.

PyTorch's recorder is off (``TORCH_FR_BUFFER_SIZE=0``) in all other jobs; its default is on. glibc keeps freed memory in
all jobs (``MALLOC_TRIM_THRESHOLD_``), because random page faults of the model's buffers would hide the costs.

With ``--device cuda`` the jobs are on NCCL, and the goal is for the elapsed time: the training thread waits for the
device most of the time. Recorded jobs then leave PyTorch's recorder on, which otel-fr reads, and time NCCL's calls,
with recording and without. The costs of these two are separate rows. Not tried on a GPU.

With ``--device fake`` each job is one process, in torch's fake process group of two: nothing is sent, and the step
computes as before. A call is complete when it returns, so the training thread also records its end; on gloo, a gloo
thread does this. Blocks take 10 ms, or one step, so other load that lasts longer slows all alike.

Each figure is the median of the ratios with its 95 % interval (from order statistics: no distribution is assumed). The
interval narrows with the square root of the rounds. Two cores run one job of two ranks at a time, so any other load
shows. ``--rows compiled`` runs no other recorded job, and so makes twice as many rounds in the same time.

What recording adds to a step depends on its calls, and on what its computation leaves of them in the caches.
``--width`` is the width of the model's 8 layers. Twice the width is four times the computation, and four times the
memory that goes through the caches. ``--batch`` is the number of rows of a batch. Twice as many are twice the
computation, on the same memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import collector
from tests.support.ports import free_port

BIN = Path(sys.executable).parent
JOB = Path(__file__).with_name("jobs") / "steps.py"
RANKS = 2
"""Default of ``--ranks``. On one GPU, several ranks would wait for their turns, and a single rank does not."""
BLOCK_SECONDS = {"cpu": 0.15, "cuda": 0.15, "fake": 0.01}
"""Seconds of a block, by device. Blocks are short, because a machine's speed changes from second to second. Without
communication a block can be one step."""
MONITOR_BLOCK_SECONDS = 8.0
"""Seconds of the block in which the monitor is measured. The monitor works in rounds of up to a second."""
LEAST_ROUNDS = 12
GOALS = {"ddp": 1.002, "fsdp2": 1.002, "tp": 1.05}
PRECISION = {"ddp": 0.0005, "fsdp2": 0.0005, "tp": 0.005}
"""Half width of an interval that needs no more rounds."""
MEASURES = ("thread", "process", "wall")
HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""Makes glibc keep freed memory, so that no step waits for pages that the step before gave back. By default a step of
FSDP2 has 0 to 900 page faults, depending on the places of small objects. That is up to 5 % of its time."""
SHARED_GPU = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""For ranks that share a GPU (tests/gpu/hardware.py). Ranks with GPUs of their own on one machine use no network."""
NO_RECORDER = {"TORCH_FR_BUFFER_SIZE": "0"}
REFERENCE = "off"
TIMED = "NCCL's timing"
ROWS = ("python", "compiled", "torch's recorder", "FlightRecorderHook", TIMED, "off again")
ENGINES = ROWS[:2]
GOAL_OF = {"cpu": "thread", "cuda": "wall", "fake": "thread"}
"""Device -> the measure of the goals."""
NAMES = {"thread": "the training thread's CPU time", "wall": "the elapsed time"}
LEFT_OUT = {"cpu": (TIMED,), "cuda": (), "fake": (TIMED, "torch's recorder", "FlightRecorderHook", "ddp")}
"""Rows and kinds that a device lacks. Fake: PyTorch's recorder is part of the backends, and DDP takes gradients from
the value of a future, which this group does not set."""
ORDERS = ((True, False, False, True), (False, True, True, False))
"""Orders of blocks with and without recording."""

Costs = dict[str, float]


class Shape(NamedTuple):
    """The model of ddp and fsdp2: the width of its layers, and the rows of a batch."""

    width: int = 512
    batch: int = 64


SHAPE = Shape()


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the bounds of its 95 % interval, which are two of the values (order statistics)."""
    ordered = sorted(values)
    count = len(ordered)
    outside, total = 0, 0.0
    while outside < count // 2:
        total += math.comb(count, outside) / 2**count
        if total > 0.025:
            break
        outside += 1
    outside = max(outside - 1, 0)
    return statistics.median(ordered), ordered[outside], ordered[count - 1 - outside]


class Job:
    """The ranks of one job. Each rank waits for blocks to run."""

    def __init__(
        self,
        name: str,
        variant: str,
        settings: dict[str, str],
        errors: Path,
        device: str = "cpu",
        ranks: int = RANKS,
        shape: Shape = SHAPE,
    ) -> None:
        self.name = name
        self.recorded = variant == "otel_fr"
        env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
        env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        env.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), OTEL_SERVICE_NAME=f"steps-{name}")
        env.update(SHARED_GPU | HEAP | settings)
        self._errors = errors / f"{name}.txt"
        with self._errors.open("wb") as output:
            self.ranks = [
                subprocess.Popen(
                    [sys.executable, str(JOB), variant, device, str(shape.width), str(shape.batch)],
                    env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    bufsize=1,
                )
                for rank in range(ranks)
            ]

    def first_answers(self) -> list[dict[str, Any]]:
        """Return the message of each rank when it is ready."""
        return [self._answer(rank) for rank in self.ranks]

    def run(self, kind: str, steps: int, record: bool) -> Costs:
        """Run a block. Returns the mean of the ranks, in seconds a step."""
        request = json.dumps({"kind": kind, "steps": steps, "record": record})
        for rank in self.ranks:
            _pipe(rank.stdin).write(request + "\n")
        answers = [self._answer(rank) for rank in self.ranks]
        return {key: statistics.mean(answer[key] for answer in answers) / steps for key in answers[0]}

    def _answer(self, rank: subprocess.Popen[str]) -> dict[str, Any]:
        line = _pipe(rank.stdout).readline()
        if not line:
            raise SystemExit(f"a rank of {self.name} ended:\n{self._errors.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        for rank in self.ranks:
            _pipe(rank.stdin).close()
        for rank in self.ranks:
            try:
                rank.wait(60)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            _pipe(rank.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextlib.contextmanager
def jobs(
    endpoint: str, folder: Path, rows: Sequence[str], device: str = "cpu", ranks: int = RANKS, shape: Shape = SHAPE
) -> Iterator[dict[str, Job]]:
    """Start the jobs of these rows and the reference. Yield the ready jobs by name. A job that cannot record as it must
    is left out, and the reason is printed."""
    sending = {**({} if device == "cuda" else NO_RECORDER), "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    if cache := os.environ.get("XDG_CACHE_HOME"):
        sending["XDG_CACHE_HOME"] = cache
    started = {
        name: Job(name, variant, settings, folder, device, ranks, shape)
        for name, variant, settings in (
            ("python", "otel_fr", {**sending, "OTEL_FR_CAPTURE_ENGINE": "python"}),
            ("compiled", "otel_fr", {**sending, "OTEL_FR_CAPTURE_ENGINE": "compiled"}),
            ("torch's recorder", "recorder", {}),
            ("FlightRecorderHook", "hook", {}),
            (TIMED, "off", {**NO_RECORDER, "TORCH_NCCL_ENABLE_TIMING": "1"}),
            (REFERENCE, "off", NO_RECORDER),
            ("off again", "off", NO_RECORDER),
        )
        if name == REFERENCE or name in rows
    }
    try:
        for name, job in list(started.items()):
            answers = job.first_answers()
            by = answers[0]["by"]
            if by.startswith("nothing") or (job.recorded and by != name):
                print(f"no row for {name}: {by}", flush=True)
                started.pop(name).stop()
        yield started
    finally:
        for job in started.values():
            job.stop()


@dataclass
class Results:
    """The results of one kind of step.

    Attributes:
        ratios: by row and measure.
        steps: seconds of a step without recording, by measure.
        monitors: engine -> CPU seconds of a monitor for each second of the job, and for each step.
    """

    ratios: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    steps: dict[str, list[float]] = field(default_factory=lambda: {measure: [] for measure in MEASURES})
    monitors: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, row: str, ours: Costs, reference: Costs) -> None:
        for measure in MEASURES:
            ratio = ours[measure] / reference[measure]
            self.ratios.setdefault(row, {}).setdefault(measure, []).append(ratio)

    def is_precise(self, kind: str, measure: str) -> bool:
        """Return True if the goal's measure is known well enough for both engines."""
        found = [interval(self.ratios[row][measure]) for row in ENGINES if row in self.ratios]
        return all((high - low) / 2 <= PRECISION[kind] for _, low, high in found)


def _mean(blocks: Sequence[Costs]) -> Costs:
    return {measure: statistics.mean(block[measure] for block in blocks) for measure in blocks[0]}


def play_round(running: dict[str, Job], kind: str, steps: int, results: Results, choose: random.Random) -> None:
    """Give each job a turn, in random order."""
    bare: dict[str, Costs] = {}
    for name in choose.sample(list(running), len(running)):
        job = running[name]
        if job.recorded:
            found: dict[bool, list[Costs]] = {True: [], False: []}
            for record in choose.choice(ORDERS):
                found[record].append(job.run(kind, steps, record))
            recorded, released = (_mean(found[record]) for record in (True, False))
            results.add(name, recorded, released)
            bare[f"{name}, released"] = released
        else:
            bare[name] = job.run(kind, steps, False)
    off = bare.pop(REFERENCE)
    for name, costs in bare.items():
        results.add(name, costs, off)
    for measure in MEASURES:
        results.steps[measure].append(off[measure])


def measure_kind(
    running: dict[str, Job], kind: str, seconds: float, results: Results, choose: random.Random, device: str
) -> None:
    """Play rounds until the figures are precise or the time is over. Then measure the monitors."""
    step = running[REFERENCE].run(kind, 5, False)["wall"]
    steps = max(1, round(BLOCK_SECONDS[device] / step))
    start = time.monotonic()
    rounds = 0
    while rounds < 2 or (
        time.monotonic() - start < seconds
        and not (rounds >= LEAST_ROUNDS and results.is_precise(kind, GOAL_OF[device]))
    ):
        play_round(running, kind, steps, results, choose)
        rounds += 1
    for name, job in running.items():
        if job.recorded:
            cost = job.run(kind, max(2, round(MONITOR_BLOCK_SECONDS / step)), True)
            results.monitors.setdefault(name, []).append((cost["monitor"] / cost["wall"], cost["monitor"]))


def _figure(values: Sequence[float]) -> str:
    middle, low, high = interval(values)
    return f"{middle:.4f} ({low:.4f} to {high:.4f})"


def _met(kind: str, row: str, results: Results, measure: str) -> str:
    """Return whether the goal is met, as text."""
    ratios = results.ratios[row][measure]
    _, low, high = interval(ratios)
    if len(ratios) < LEAST_ROUNDS or low <= GOALS[kind] < high:
        return f"not decided in {len(ratios)} rounds"
    return "met" if high <= GOALS[kind] else "missed"


def report(kind: str, results: Results, goal_of: str) -> None:
    times = {measure: 1e3 * statistics.median(values) for measure, values in results.steps.items()}
    count = len(results.steps["wall"])
    print(
        f"\n{kind}: a step without recording takes {times['wall']:.2f} ms, {times['thread']:.2f} ms of CPU time of the"
    )
    print(f"training thread, {times['process']:.2f} ms of all threads of the rank; {count} rounds")
    print(f"  {'ratio to it, 95 % interval':26} {'training thread':28} {'all threads':28} {'elapsed':28} monitor")
    for row, ratios in results.ratios.items():
        texts = " ".join(f"{_figure(ratios[measure]):28}" for measure in MEASURES)
        monitor = ""
        if row in results.monitors:
            core = statistics.mean(core for core, _ in results.monitors[row])
            each = statistics.mean(each for _, each in results.monitors[row])
            monitor = f"{core:.1%} of a core, {1e3 * each:.2f} ms a step"
        print(f"  {row:26} {texts} {monitor}".rstrip(), flush=True)
    for row in ENGINES:
        if row in results.ratios:
            print(
                f"  goal {GOALS[kind]:g} for {NAMES[goal_of]}, {row}: {_met(kind, row, results, goal_of)}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(GOALS), help="default: all; ddp has none with --device fake")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="beside a job that records nothing; default: all")
    parser.add_argument("--device", choices=list(GOAL_OF), default="cpu")
    parser.add_argument("--ranks", type=int, help=f"default: {RANKS}; with --device fake 1, and no other")
    parser.add_argument("--width", type=int, default=SHAPE.width, help="of the model of ddp and fsdp2")
    parser.add_argument("--batch", type=int, default=SHAPE.batch, help="rows of a batch of ddp and fsdp2")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=float, default=240.0, help="of rounds at most, for each kind")
    limit.add_argument("--minutes", type=float, help="at most, for all: the starts of jobs, too")
    parser.add_argument("--launches", type=int, default=2, help="of all jobs: processes differ from each other")
    args = parser.parse_args()
    left_out = LEFT_OUT[args.device]
    if impossible := [one for one in (*(args.rows or ()), *(args.kinds or ())) if one in left_out]:
        parser.error(f"--device {args.device} has no {', '.join(impossible)}")
    if args.device == "fake" and args.ranks not in (None, 1):
        parser.error("with --device fake a job is one process: leave --ranks out")
    rows = args.rows or [row for row in ROWS if row not in left_out]
    kinds = args.kinds or [kind for kind in GOALS if kind not in left_out]
    ranks = args.ranks or (1 if args.device == "fake" else RANKS)
    choose = random.Random(0)
    results = {kind: Results() for kind in kinds}
    end = math.inf if args.minutes is None else time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = collector(Path(folder))
        stack.callback(server.stop)
        endpoint = f"http://{server.address}"
        for launch in range(args.launches):
            until = time.monotonic() + (end - time.monotonic()) / (args.launches - launch)
            with jobs(endpoint, Path(folder), rows, args.device, ranks, Shape(args.width, args.batch)) as running:
                monitors = MONITOR_BLOCK_SECONDS * sum(job.recorded for job in running.values())
                for number, kind in enumerate(kinds):
                    share = (until - time.monotonic()) / (len(kinds) - number) - monitors
                    seconds = min(args.seconds / args.launches if args.minutes is None else math.inf, share)
                    measure_kind(running, kind, max(seconds, 0.0), results[kind], choose, args.device)
    for kind, found in results.items():
        report(kind, found, GOAL_OF[args.device])


if __name__ == "__main__":
    main()
