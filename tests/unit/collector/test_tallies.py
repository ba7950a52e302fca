"""How long ranks were waited for and waited, as totals; and who is named for it, and when."""

from __future__ import annotations

import random

import pytest
from otel_fr_collector import gauges as gauges_module
from otel_fr_collector import timeline
from otel_fr_collector.control import Control
from otel_fr_collector.gauges import JobGauges
from otel_fr_collector.jobs import tallies as tallies_module
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.step_rate import StepRate
from otel_fr_collector.jobs.tallies import RankTally, Tallies
from otel_fr_collector.jobs.usage import Usage
from prometheus_client import CollectorRegistry

from otel_fr.match import Group
from otel_fr.waits.blocks import MIN_SPAN, may_be_chance
from tests.support.told import group_in, new_run, run_in
from tests.unit.collector.test_waits import TRANSFER, Ranks, late_job

GROUP = Group("g", "0", "default_pg", (0, 1, 2))


def tally_of(ranks: Ranks, rank: int) -> RankTally:
    return dict(ranks.waits.tallies.items()).get(rank, RankTally())


@pytest.mark.parametrize("late", [0.002, 0.02, 0.15])
def test_every_wait_counts_for_the_rank_that_came_last_however_short(late: float) -> None:
    ranks = late_job(steps=100, late=late)
    slow, other = tally_of(ranks, 1), tally_of(ranks, 0)
    assert slow.waited_for == pytest.approx(100 * late, rel=0.01)
    assert (slow.came_last, slow.waited) == (100, 0.0)
    assert other.waited == pytest.approx(100 * late, rel=0.01)
    assert (other.came_last, other.waited_for) == (0, 0.0)


def test_calls_of_one_burst_lose_their_time_once() -> None:
    """The buckets of a step are enqueued before the first of them ends: the last rank is late in all of them."""
    ranks = Ranks(4)
    for _ in range(100):
        start = ranks.now
        times = [start + (0.25 if rank == 3 else 0.1) for rank in range(4)]
        for bucket in range(5):
            ranks.meet([at + bucket * 1e-4 for at in times])
    assert tally_of(ranks, 3).waited_for == pytest.approx(100 * 0.15, rel=0.3)


def test_a_sample_counts_for_all() -> None:
    ranks = late_job(2, steps=4_000, late=0.01, operation="all_reduce")
    ranks.waits.tallies.release()
    fast = Ranks(2)
    for _ in range(20_000):
        fast.step(0.01, 0.02)
    assert tally_of(fast, 1).waited_for == pytest.approx(20_000 * 0.01, rel=0.05)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("step", [0.1, 0.3, 0.6])
def test_a_rank_that_comes_last_each_time_is_named_within_15_seconds(step: float, size: int) -> None:
    ranks = Ranks(size)
    named_at = None
    while named_at is None and ranks.now < 60.0:
        ranks.step(*[step] * (size - 1), step + 0.15)
        named_at = ranks.now if ranks.waits.blocks.slowest() else None
    slowest = ranks.waits.blocks.slowest()
    assert slowest is not None
    assert named_at is not None
    assert MIN_SPAN <= named_at <= 14.0
    assert (slowest.rank, slowest.share) == (size - 1, 1.0)
    assert slowest.seconds == pytest.approx(0.15, abs=1e-3)
    assert slowest.waited == pytest.approx(0.15 / (step + 0.15 + TRANSFER), rel=0.1)


def test_a_rank_that_is_held_up_for_some_seconds_is_not_named() -> None:
    ranks = Ranks(4)
    while ranks.now < 4.0:
        ranks.step(0.01, 0.01, 0.01, 0.11)
        assert ranks.waits.blocks.slowest() is None


def test_what_may_be_chance_is_counted_as_coins_fall() -> None:
    def least(waits: int, members: int) -> int | None:
        return next((last for last in range(waits + 1) if not may_be_chance(last, waits, members)), None)

    assert [least(waits, 2) for waits in (16, 17, 22, 32)] == [None, 17, 21, 28]
    assert [least(waits, 3) for waits in (10, 11, 14, 20)] == [None, 11, 13, 17]
    assert least(14, 1_000) == 13


@pytest.mark.parametrize("size", [2, 9])
def test_a_healthy_noisy_job_has_waits_and_names_nobody(size: int) -> None:
    draw = random.Random(0)
    ranks = Ranks(size)
    for _ in range(3_000):
        ranks.step(*(0.1 * draw.uniform(0.5, 2.0) + (0.4 if draw.random() < 0.02 else 0.0) for _ in range(size)))
        assert ranks.waits.blocks.slowest() is None
    assert all(tally_of(ranks, rank).waited_for for rank in range(size))


def test_nobody_is_named_any_more_once_nobody_is_waited_for() -> None:
    ranks = late_job(steps=100)
    assert ranks.waits.blocks.slowest() is not None
    for _ in range(300):
        ranks.step(*[0.3] * 4)
    assert ranks.waits.blocks.slowest() is None


def test_totals_have_bounds_and_their_room_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies_module, "MAX_TALLIES", 10)
    usage = Usage()
    tallies = Tallies(usage)
    assert [tallies.of(rank) is not None for rank in range(12)] == [True] * 10 + [False] * 2
    assert (usage.tallies, usage.refused["waits"]) == (10, 2)
    tallies.release()
    assert usage.tallies == 0


def test_totals_of_a_job_never_fall_while_it_is_known() -> None:
    runs, registry = Runs(), CollectorRegistry()
    registry.register(JobGauges(runs, list, lambda _: (), Control()))

    def count(name: str, seconds: float, now: float) -> Run:
        run = run_in(runs, name, now)
        run.last_seen = now
        group = group_in(run, GROUP)
        tally = group.waits.tallies.of(1)
        assert tally is not None
        tally.add(RankTally(seconds, 1, 0.5))
        return run

    def total() -> float | None:
        labels = {"job_id": "job", "process_group": "default_pg", "rank": "1"}
        return registry.get_sample_value("otel_fr_rank_waited_for_seconds_total", labels)

    count("first", 10.0, 0.0)
    assert total() == 10.0
    count("second", 3.0, timeline.IDLE_FORGET)
    assert total() == 13.0
    assert [run.id.run for run in runs.drop_ended(timeline.IDLE_FORGET + 1)] == ["first"]
    assert total() == 13.0
    assert runs.drop_ended(3 * timeline.IDLE_FORGET + timeline.CLEAN_FORGET)
    assert total() is None
    assert runs.usage.tallies == 0


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_total_does_not_fall_once_others_are_waited_for_more(
    is_dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges_module, "MAX_RANKS_OF_GROUP", 1)
    runs, registry = Runs(), CollectorRegistry()
    registry.register(JobGauges(runs, list, lambda _: (), Control()))

    def count(name: str, rank: int, seconds: float) -> float | None:
        tally = group_in(run_in(runs, name), GROUP).waits.tallies.of(rank)
        assert tally is not None
        tally.waited_for += seconds
        labels = {"job_id": "job", "process_group": "default_pg", "rank": "1"}
        return registry.get_sample_value("otel_fr_rank_waited_for_seconds_total", labels)

    assert count("first", 1, 10.0) == 10.0
    assert count("second", 1, 3.0) == 13.0
    if is_dropped:
        runs._drop(run_in(runs, "first"))
    assert count("second", 2, 5.0) == 13.0


def test_the_rate_of_steps_follows_one_rank_and_new_numbers() -> None:
    rate = StepRate()
    for second in range(30):
        rate.note(0, second * 4, float(second))
        rate.note(1, second * 4 - 3, second + 0.5)
    assert rate.per_second(29.0) == pytest.approx(4.0, rel=0.1)
    assert rate.per_second(40.0) is None  # no report any more
    for second in range(40, 60):
        rate.note(1, (second - 40) * 2, float(second))  # the program counts again, and rank 0 has ended
    assert rate.per_second(59.0) == pytest.approx(2.0, rel=0.1)


def test_of_a_run_that_stands_still_nobody_is_named() -> None:
    run = new_run()
    group = group_in(run, GROUP)
    group.waits = late_job(steps=100).waits
    lost = group.waits.lost
    for second in range(0, 61, 15):
        group.waits.lost = lost * second / 60
        run.keep_sample(float(second))
    assert [one.rank for _, one in run.slowest(60.0)] == [1]
    for second in range(75, 151, 15):
        run.keep_sample(float(second))
    assert list(run.slowest(150.0)) == []
