"""The communication of one run over the latest 15 minutes: a sample of its totals every 15 s."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.numbers import Numbers

EVERY = 15.0
"""Seconds between two samples. Monitors send their numbers as often."""
KEPT = 61
"""Samples of a quarter of an hour. They take 15 kB for each run, and 60 MB for 4,096 runs, the most."""
LATEST = 60.0
"""Seconds over which the latest rates are taken."""
LEAST = 5.0
"""Seconds that two samples must be apart before there are rates."""
LEAST_TOLD = 1.0
"""Seconds for which the ranks must have sent numbers, on average, before rates are computed from them."""


class Sample(NamedTuple):
    """Totals at one moment.

    Attributes:
        at: monotonic seconds.
        collectives, size: how many there were, and their bytes as nccl-tests counts them, counted once for all ranks;
            None: no monitor sends numbers.
        covered: seconds that these numbers cover, summed over the ranks: monitors send them only now and then.
        ranks: how many ranks send numbers.
        lost: seconds that half of a group waited for its last rank, summed over all groups; None: not measured.
        bus: bus bandwidth of the latest collectives in bytes per second; step: average seconds of the latest training
            steps; None: not known.
    """

    at: float
    collectives: float | None
    size: float | None
    lost: float | None
    bus: float | None
    step: float | None
    covered: float = 0.0
    ranks: int = 0


class Rates(NamedTuple):
    """Rates per second between two samples; None: not known.

    ``at``, ``bus`` and ``step`` come from the later sample. ``wait`` is a share of the time.
    """

    at: float
    collectives: float | None
    size: float | None
    wait: float | None
    bus: float | None
    step: float | None


def take(now: float, numbers: Numbers | None, groups: Iterable[GroupState], steps_per_second: float | None) -> Sample:
    """The totals as of now."""
    waits = [group.waits for group in groups]
    lost = None if any(one.is_off or one.are_ends_seen for one in waits) else sum(one.lost for one in waits)
    step = 1 / steps_per_second if steps_per_second else None
    if numbers is None:
        return Sample(now, None, None, lost, None, step)
    bus = numbers.bus_bandwidth()
    return Sample(now, numbers.collectives, numbers.size, lost, bus, step, numbers.covered, numbers.ranks)


class History:
    """The latest samples of one run. ``first`` is the run's first sample, even if ``samples`` no longer has it."""

    __slots__ = ("first", "samples")

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.first: Sample | None = None

    def is_due(self, now: float) -> bool:
        return not self.samples or now - self.samples[-1].at >= EVERY

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.first = self.first or sample

    def intervals(self) -> Iterator[Rates]:
        """The rates of each interval, oldest first."""
        for before, after in pairwise(self.samples):
            yield rates(before, after)

    def latest(self, now: Sample) -> Rates | None:
        """Rates over about the last minute; None: too little is known."""
        before = next((one for one in self.samples if now.at - one.at <= LATEST), None)
        return _rates_since(before, now)

    def since_start(self, now: Sample) -> Rates | None:
        """Rates since the first sample; None: too little is known."""
        return _rates_since(self.first, now)


def _rates_since(before: Sample | None, now: Sample) -> Rates | None:
    return None if before is None or now.at - before.at < LEAST else rates(before, now)


def rates(before: Sample, after: Sample) -> Rates:
    """The rates between a sample and a later one."""
    seconds = max(after.at - before.at, 1e-9)
    collectives = size = None
    told = (after.covered - before.covered) / after.ranks if after.ranks else 0.0
    if after.collectives is not None and after.size is not None and told >= LEAST_TOLD:
        collectives = (after.collectives - (before.collectives or 0.0)) / told
        size = (after.size - (before.size or 0.0)) / told
    wait = None
    if after.lost is not None and before.lost is not None:
        wait = min(1.0, (after.lost - before.lost) / seconds)
    return Rates(after.at, collectives, size, wait, after.bus, after.step)
