"""Who comes last on devices, from their own durations: the right rank within seconds, and nobody of a healthy job."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from otel_fr_collector.jobs import waits

from tests.support.device_job import DeviceJob
from tests.support.long_tests import all_but

TELL = 1.0
"""Seconds between two times that spans arrive and the collector looks."""
SOON = 15.0
SOON_IN_PAIRS = 20.0
"""In groups of two, where it takes more blocks to exclude chance."""

Compute = Callable[[int], float]
"""Seconds that a rank computes before its next collective."""


def fsdp(job: DeviceJob, compute: Compute) -> None:
    """Many short collectives: an all_gather for each layer, a reduce_scatter for each on the way back."""
    world = range(job.size)
    for operation in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        for _ in range(10):
            for rank in world:
                job.compute(rank, compute(rank) / 20)
            job.collective(operation, world)


def ddp(job: DeviceJob, compute: Compute) -> None:
    """One all_reduce a step, and one of the loss right after it."""
    world = range(job.size)
    for rank in world:
        job.compute(rank, compute(rank))
    job.collective("all_reduce", world)
    job.collective("all_reduce", world)


def tensor_parallel(job: DeviceJob, compute: Compute) -> None:
    """Pairs of ranks meet in each layer, their replicas once a step."""
    half = job.size // 2
    for _ in range(4):
        for rank in range(job.size):
            job.compute(rank, compute(rank) / 4)
        for pair in range(half):
            job.collective("all_reduce", (2 * pair, 2 * pair + 1), "tp")
    for way in range(2):
        job.collective("all_reduce", range(way, job.size, 2), "dp")


def pipeline(job: DeviceJob, compute: Compute) -> None:
    """Two replicas of a pipeline whose first stage has three times the work of the others."""
    stages = job.size // 2
    parts = [range(replica * stages, (replica + 1) * stages) for replica in range(2)]

    def work(rank: int) -> float:
        return compute(rank) * (3.0 if rank % stages == 0 else 1.0) / 24

    for _ in range(2):
        for part in parts:
            for rank in part:
                if rank != part[0]:
                    job.message(rank - 1, rank)
                job.compute(rank, work(rank))
    for _ in range(2):
        for part in parts:
            for rank in reversed(part):
                if rank != part[-1]:
                    job.message(rank + 1, rank)
                job.compute(rank, 2 * work(rank))
    for stage in range(stages):
        job.collective("all_reduce", (stage, stage + stages), "dp")
    job.collective("all_reduce", range(job.size))


Step = Callable[[DeviceJob, Compute], None]
STEPS: dict[str, Step] = {"fsdp": fsdp, "ddp": ddp, "tensor parallel": tensor_parallel, "pipeline": pipeline}


def play(job: DeviceJob, step: Step, compute: Compute, seconds: float, look: Callable[[], bool]) -> float | None:
    """Train for so long; returns when ``look``, asked each time that spans have arrived, was true."""
    told = 0.0
    while job.now[0] < seconds:
        step(job, compute)
        if job.now[0] - told >= TELL:
            told = job.now[0]
            job.tell()
            if look():
                return told
    return None


@pytest.mark.parametrize("name", list(STEPS))
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_slow_device_is_named_within_seconds(name: str, size: int) -> None:
    if name in ("tensor parallel", "pipeline") and size == 2:
        size = 6
    job, slow = DeviceJob(size, name), size // 2
    noise = random.Random(name)
    at = play(
        job,
        STEPS[name],
        lambda rank: 0.3 * noise.uniform(0.9, 1.1) * (1.5 if rank == slow else 1.0),
        60.0,
        lambda: bool(job.named()),
    )
    assert at is not None
    is_in_pairs = size == 2 or STEPS[name] in (tensor_parallel, pipeline)
    assert at <= (SOON_IN_PAIRS if is_in_pairs else SOON) + TELL
    assert job.named() == {slow}
    assert job.shown() == {slow}


def test_a_device_that_becomes_slow_is_named_as_soon() -> None:
    job = DeviceJob(4)
    noise = random.Random(1)

    def healthy(rank: int) -> float:
        return 0.2 * noise.uniform(0.8, 1.2)

    assert play(job, fsdp, healthy, 40.0, lambda: bool(job.named())) is None
    begun = job.now[0]
    at = play(job, fsdp, lambda rank: healthy(rank) + 0.1 * (rank == 2), 80.0, lambda: bool(job.named()))
    assert at is not None
    assert at - begun <= SOON + TELL
    assert job.named() == {2}


def test_without_times_on_devices_nobody_is_named_and_no_wait_is_counted() -> None:
    job = DeviceJob(4, untimed=1.0)
    assert play(job, ddp, lambda rank: 0.2 + 0.2 * (rank == 1), 60.0, lambda: bool(job.named() | job.shown())) is None
    (group,) = job.run.groups.values()
    assert group.waits.are_ends_seen
    assert group.waits.lost == 0.0


def test_what_a_wait_costs_is_that_of_the_devices() -> None:
    job = DeviceJob(4)
    play(job, ddp, lambda rank: 0.2 + 0.1 * (rank == 1), 30.0, lambda: False)
    (group,) = job.run.groups.values()
    (found,) = group.waits.blocks.stragglers()
    assert found.seconds == pytest.approx(0.1, rel=0.01)
    assert found.waited == pytest.approx(0.1 / 0.3, rel=0.25)
    assert dict(group.waits.tallies.items())[1].waited_for == pytest.approx(group.waits.lost)


def test_while_there_are_not_too_many_collectives_each_is_measured() -> None:
    job = DeviceJob(4, untimed=0.0)
    play(job, ddp, lambda _: 3.0 / waits.FAST, 30.0, lambda: False)
    (group,) = job.run.groups.values()
    assert group.waits.measured > 0.9 * 30.0 * waits.FAST * 2 / 3


def test_once_there_are_few_collectives_again_each_is_measured() -> None:
    """Each rank's call counted as a collective, so that a quick phase was never over for a group of eight."""
    job = DeviceJob(8, untimed=0.0)
    play(job, ddp, lambda _: 0.05, 10.0, lambda: False)
    (group,) = job.run.groups.values()
    quick = group.waits.measured
    assert 0 < quick < 0.5 * 10.0 * 2 / 0.05
    play(job, ddp, lambda _: 0.5, 30.0, lambda: False)
    assert group.waits.measured - quick > 0.8 * 20.0 * 2 / 0.5


def test_calls_that_wait_for_spans_of_other_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_OPEN", 10)
    job = DeviceJob(4)
    job.silent = 3
    play(job, ddp, lambda _: 0.1, 30.0, lambda: False)
    (group,) = job.run.groups.values()
    assert 0 < job.run.usage.timed <= 30
    group.waits.release()
    assert job.run.usage.timed == 0


def test_ranks_whose_times_are_missing_do_not_hide_the_straggler() -> None:
    job = DeviceJob(8, untimed=0.1)
    noise = random.Random(1)
    play(job, fsdp, lambda rank: noise.uniform(0.2, 0.3) + 0.1 * (rank == 5), 25.0, lambda: False)
    assert job.named() == {5}


def noise_of(draw: random.Random) -> Compute:
    """How long the ranks of a healthy job compute: by one of several kinds of noise, each alike for all ranks."""
    calls: dict[int, int] = {}
    base, kind = draw.uniform(0.02, 0.4), draw.choice(("even", "wide", "heavy", "hiccups", "by turns", "warm-up"))
    victim, period = draw.randrange(8), draw.choice((1, 2, 7))

    def compute(rank: int) -> float:
        turn = calls[rank] = calls.get(rank, 0) + 1
        seconds = base * draw.uniform(0.9, 1.1)
        if kind == "wide":
            return seconds + draw.expovariate(1 / base)
        if kind == "heavy":
            return seconds + min(5.0, 0.2 * base * draw.paretovariate(1.2))
        if kind == "hiccups":  # mostly of one rank
            return seconds + (20.0 if rank == victim and draw.random() < 0.0005 else 0.0)
        if kind == "by turns":
            return seconds * (1.6 if (turn // period + rank) % 2 else 1.0)
        if kind == "warm-up":
            return seconds + (draw.uniform(0, 3.0) if turn < 20 else 0.0)
        return seconds

    return compute


@pytest.mark.parametrize("name", list(STEPS))
@pytest.mark.parametrize("seed", all_but(range(4, 8), range(8)))
def test_of_a_healthy_noisy_job_nobody_is_named(name: str, seed: int) -> None:
    draw = random.Random(f"{name} {seed}")
    size = draw.choice((4, 6, 8) if name in ("tensor parallel", "pipeline") else (2, 3, 8))
    job = DeviceJob(size, f"{name} {seed}")
    assert play(job, STEPS[name], noise_of(draw), 120.0, lambda: bool(job.named())) is None, job.named()
