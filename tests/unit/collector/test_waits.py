"""Who comes last in a group and by how much: from each rank's own clock, whatever the clocks of the others say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from otel_fr_collector.jobs.calls import CompactCall, RankCall, Template, expand
from otel_fr_collector.jobs.usage import Usage
from otel_fr_collector.jobs.waits import Waits

from otel_fr.match import CallState, Group, Signature
from otel_fr.operations import ENDS_TOGETHER
from otel_fr.waits.blocks import KEPT, MAX_LATE, MAX_WATCHED, StragglerLimits
from tests.support.long_tests import all_but

LIMITS = StragglerLimits()
GROUP = Group("g", "0", "default_pg", ())
TRANSFER = 0.002


class Ranks:
    """Ranks with clocks that differ by hours, which meet in one collective after another.

    Attributes:
        ended: when each rank's previous call ended, by the true time. sequence: of the newest collective.
    """

    def __init__(self, size: int, usage: Usage | None = None) -> None:
        self.waits = Waits(LIMITS, usage or Usage())
        self.offsets = [1e9 + 3_600 * rank for rank in range(size)]
        self.ended = [0.0] * size
        self.record = [0] * size
        self.sequence = 0

    @property
    def now(self) -> float:
        return max(self.ended)

    def meet(
        self,
        enqueued: Iterable[float],
        operation: str = "all_reduce",
        *,
        gaps: bool = True,
        ends: Callable[[int, float], float] = lambda _, end: end,
        as_calls: bool = False,
    ) -> None:
        """One collective, enqueued at these true times; it ends when the last rank has come, and the previous one."""
        self.sequence += 1
        times = list(enqueued)
        end = max(*times, self.now) + TRANSFER
        template = Template(GROUP, len(times), Signature(operation), 0, "collective", CallState.COMPLETED)
        calls: dict[int, RankCall | CompactCall] = {}
        for rank, start in enumerate(times):
            offset, own_end = self.offsets[rank], ends(rank, end)
            gap = max(0.0, start - self.ended[rank]) if gaps else None
            begun, done = _ns(start + offset), _ns(own_end + offset)
            calls[rank] = (rank, template, self.sequence, self.sequence, 0, begun, done, gap, None)
            if as_calls:
                calls[rank] = expand(calls[rank])
        self.waits.add(self.sequence, calls, tuple(range(len(times))))
        self.ended = [end] * len(times)

    def step(self, *compute: float, **options: object) -> None:
        """Each rank computes for so long, then all meet."""
        now = self.now
        self.meet([now + seconds for seconds in compute], **options)  # type: ignore[arg-type]

    def named(self, known: tuple[int, ...] = ()) -> list[int]:
        return [one.rank for one in self.waits.blocks.stragglers(known)]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def late_job(size: int = 4, *, steps: int = 400, late: float = 0.15, **options: object) -> Ranks:
    """Rank 1 computes for longer than the others."""
    ranks = Ranks(size)
    for _ in range(steps):
        ranks.step(*(0.3 + (late if rank == 1 else 0.0) for rank in range(size)), **options)
    return ranks


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_the_rank_that_comes_last_is_named_with_share_and_seconds(size: int) -> None:
    (found,) = late_job(size).waits.blocks.stragglers()
    assert (found.rank, found.share, found.blocks) == (1, 1.0, KEPT)
    assert found.seconds == pytest.approx(0.15, abs=1e-3)
    assert found.waited == pytest.approx(0.15 / (0.45 + TRANSFER), rel=0.02)
    assert found.span >= LIMITS.window


def test_calls_that_came_the_long_way_count_alike() -> None:
    assert late_job(as_calls=True).waits.blocks.lateness() == late_job().waits.blocks.lateness()


def test_without_the_time_since_previous_calls_what_is_there_is_enough() -> None:
    """With trace sampling, most calls have no known predecessor."""
    assert late_job(gaps=False).named() == [1]


def test_nothing_is_said_before_the_window_and_the_collectives_are_over() -> None:
    assert late_job(steps=20).named() == []
    ranks = Ranks(3)
    for _ in range(15):
        ranks.step(1.0, 1.3, 1.0)
    assert ranks.named() == []


@pytest.mark.parametrize("late", [0.0, 0.01, 0.02])
def test_less_than_the_least_seconds_is_nothing(late: float) -> None:
    assert late_job(late=late).waits.blocks.lateness() == []


def test_a_wait_that_is_a_small_part_of_the_time_is_nothing() -> None:
    ranks = Ranks(3)
    for _ in range(200):
        ranks.step(2.0, 2.15, 2.0)
    assert ranks.named() == []
    assert ranks.waits.blocks.lateness()[0].waited == pytest.approx(0.15 / 2.15, rel=0.02)


@pytest.mark.parametrize(
    "operation", ["broadcast", "reduce", "gather", "scatter", "reduce_scatter", "monitored_barrier"]
)
def test_operations_that_do_not_synchronise_show_nothing(operation: str) -> None:
    assert operation not in ENDS_TOGETHER
    assert late_job(operation=operation).waits.blocks.lateness() == []


def test_two_ranks_of_one_slow_node_are_both_named() -> None:
    ranks = Ranks(6)
    for _ in range(400):
        ranks.step(0.3, 0.3, 0.3, 0.3, 0.45, 0.47)
    assert ranks.named() == [5, 4]


def test_collectives_right_after_another_do_not_hide_the_straggler() -> None:
    """The gradients, then the loss, the norm and a barrier: nobody is late in the latter."""
    ranks = Ranks(3)
    for _ in range(400):
        ranks.step(0.3, 0.45, 0.3)
        for operation in ("all_reduce", "all_gather", "barrier", "broadcast"):
            ranks.step(0.001, 0.001, 0.001, operation=operation)
    (found,) = ranks.waits.blocks.stragglers()
    assert (found.rank, found.share) == (1, 1.0)
    assert found.waited == pytest.approx(0.15 / 0.464, rel=0.25)  # one in eight is measured


def test_only_the_first_call_of_a_burst_counts() -> None:
    """DDP enqueues a bucket before the previous one has ended: a late rank is late in each, and that is one delay."""
    ranks = Ranks(3)
    for _ in range(300):
        start = ranks.now
        for bucket in range(5):
            ranks.meet([start + 0.3 + 0.01 * bucket + (0.15 if rank == 1 else 0.0) for rank in range(3)])
    (found,) = ranks.waits.blocks.stragglers()
    assert found.rank == 1
    assert found.waited == pytest.approx(0.15 / 0.5, rel=0.3)


def test_a_rank_that_comes_late_while_an_earlier_transfer_goes_on_is_not_waited_for() -> None:
    ranks = Ranks(3)
    for _ in range(300):
        start = ranks.now
        ranks.meet([start + 0.3] * 3, ends=lambda _, end: end)
        ranks.ended = [start + 0.9] * 3  # a long transfer
        ranks.sequence += 1
        offsets = [start + 0.4, start + 0.5, start + 0.4]
        ranks.meet(offsets)
    assert ranks.named() == []


def test_a_rank_that_waited_in_another_group_is_not_named() -> None:
    """Rank 1 comes late since it waited for a straggler elsewhere: since then it took no longer than the others."""
    ranks = Ranks(4)
    for _ in range(400):
        now = ranks.now
        ranks.ended[1] = now + 0.15  # the end of its call in the other group
        ranks.meet([now + 0.1 + (0.15 if rank == 1 else 0.0) for rank in range(4)])
    assert ranks.waits.blocks.lateness() == []


def test_calls_whose_ends_are_not_known_show_nothing() -> None:
    ranks = Ranks(2)
    template = Template(GROUP, 2, Signature("all_reduce"), 0, "collective", CallState.UNKNOWN)
    for number in range(400):
        calls = {
            rank: expand((rank, template, number, number, 0, _ns(number), _ns(number + 0.3 * rank), 0.1, None))
            for rank in range(2)
        }
        ranks.waits.add(number, calls, (0, 1))
    assert ranks.waits.blocks.lateness() == []


@pytest.mark.parametrize("step", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("is_seen", [True, False])
def test_ends_that_a_thread_sees_now_and_then_name_nobody(step: float, is_seen: bool) -> None:
    """PyTorch's watchdog looks at NCCL's calls every 100 ms, on each rank at times of its own: one rank sees all ends
    first for minutes, which looks as if it came last."""
    draw = random.Random(7)
    template = Template(GROUP, 4, Signature("all_reduce"), 0, "collective", CallState.COMPLETED, is_end_seen=is_seen)
    first, period = [draw.random() * 0.1 for _ in range(4)], [0.1002 + 2e-4 * draw.random() for _ in range(4)]
    waits, ended, now, named = Waits(LIMITS, Usage()), [0.0] * 4, 0.0, 0
    for sequence in range(1, round(240 / step)):
        enqueued = [now + 0.9 * step + draw.uniform(0, 0.002) for _ in range(4)]
        now = max(enqueued) + 0.1 * step
        calls: dict[int, RankCall | CompactCall] = {}
        for rank, start in enumerate(enqueued):
            seen = first[rank] + math.ceil((now - first[rank]) / period[rank]) * period[rank]
            gap = max(0.0, start - ended[rank])
            calls[rank] = (rank, template, sequence, sequence, 0, _ns(start + 1e9), _ns(seen + 1e9), gap, None)
            ended[rank] = seen
        waits.add(sequence, calls, (0, 1, 2, 3))
        named += waits.blocks.slowest() is not None
    if is_seen:
        assert (named, waits.blocks.lateness(), waits.blocks.stragglers(), waits.lost) == (0, [], [], 0.0)
        assert waits.are_ends_seen
    else:
        assert named, "the test shows what it is for"


def test_it_is_over_once_the_rank_comes_in_time() -> None:
    ranks = late_job()
    assert ranks.named((1,)) == [1]
    for steps, over in ((100, False), (200, True)):
        for _ in range(steps):
            ranks.step(0.3, 0.3, 0.3, 0.3)
        assert ranks.waits.is_over((1,)) is over
    assert ranks.named((1,)) == []


def test_it_is_over_once_another_rank_comes_last() -> None:
    ranks = late_job()
    for _ in range(300):
        ranks.step(0.3, 0.3, 0.45, 0.3)
    assert ranks.waits.is_over((1,))
    assert ranks.named() == [2]


def test_after_a_restart_of_the_collector_nothing_is_over_until_the_group_was_watched_for_the_window() -> None:
    ranks = Ranks(3)
    assert not ranks.waits.is_over((1,))
    ranks.step(0.3, 0.3, 0.3)
    assert not ranks.waits.is_over((1,))
    for _ in range(250):
        ranks.step(0.3, 0.3, 0.3)
    assert ranks.waits.is_over((1,))


def test_a_clock_that_is_set_starts_it_anew() -> None:
    ranks = late_job()
    ranks.offsets[0] -= 86_400.0
    ranks.step(0.3, 0.45, 0.3, 0.3)
    assert ranks.waits.blocks.lateness() == []
    for _ in range(300):
        ranks.step(0.3, 0.45, 0.3, 0.3)
    assert ranks.named() == [1]


def test_of_many_groups_only_some_are_watched_and_room_is_given_back() -> None:
    usage = Usage()
    groups = [Ranks(20, usage=usage) for _ in range(MAX_WATCHED + 2)]
    for ranks in groups:
        for _ in range(2):
            ranks.step(*(0.3 if rank < 10 + 1 else 0.5 for rank in range(20)))
    assert usage.watched == MAX_WATCHED
    assert not groups[-1].waits.blocks.kept
    assert groups[0].waits.blocks.kept
    assert len(groups[0].waits.blocks.kept[0].late) == MAX_LATE
    groups[0].waits.release()
    for _ in range(2):
        groups[-1].step(*(0.3 if rank else 0.5 for rank in range(20)))
    assert groups[-1].waits.blocks.kept


@pytest.mark.parametrize("size", all_but((2, 8), (2, 3, 4, 8)))
@pytest.mark.parametrize("shape", ["exponential", "heavy", "uniform", "hiccups"])
def test_random_independent_delays_never_open_an_incident(size: int, shape: str) -> None:
    """An hour of a job on an overloaded machine: every rank is late by chance, and by much more than the limit."""
    draw = random.Random(f"{size} {shape}")
    delays: dict[str, Callable[[], float]] = {
        "exponential": lambda: draw.expovariate(1 / 0.2),
        "heavy": lambda: min(20.0, 0.05 * draw.paretovariate(1.2)),
        "uniform": lambda: draw.uniform(0, 1),
        "hiccups": lambda: 3.0 if draw.random() < 0.05 else 0.0,
    }
    ranks = Ranks(size)
    while ranks.now < 3_600:
        ranks.step(*(0.1 + delays[shape]() for _ in range(size)))
        if ranks.sequence % 4 == 0:
            assert ranks.named() == [], ranks.waits.blocks.lateness()


def test_noise_does_not_hide_a_straggler() -> None:
    draw = random.Random(7)
    ranks = Ranks(3)
    while ranks.now < 300:
        ranks.step(*(0.2 + draw.expovariate(1 / 0.02) + (0.15 if rank == 2 else 0.0) for rank in range(3)))
    assert ranks.named() == [2]
