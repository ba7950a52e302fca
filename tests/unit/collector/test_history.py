"""The rates of a run over time, and what the API gives of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.history import EVERY, KEPT, History, Sample, rates
from otel_fr_collector.web.rates import rates as as_json

from otel_fr.match import CallState, Group, Signature
from tests.support.rank_metrics import QUICK, SIZE
from tests.support.told import apply, group_in, new_run, told_group
from tests.unit.collector.test_numbers import Collector, Rank


def sample(at: float, collectives: float | None = None, lost: float = 0.0) -> Sample:
    if collectives is None:
        return Sample(at, None, None, lost, None, None)
    return Sample(at, collectives, 100 * collectives, lost, None, None, covered=2 * at, ranks=2)


def test_rates_are_the_differences_of_totals() -> None:
    found = rates(sample(10.0, 100, 1.0), sample(30.0, 300, 5.0))
    assert (found.at, found.collectives, found.size, found.wait) == (30.0, 10.0, 1_000.0, 0.2)
    assert rates(sample(10.0), sample(30.0, 300)).collectives == 10.0  # the first numbers have come, of 30 s
    assert rates(sample(10.0), sample(30.0)).collectives is None


def test_rates_are_over_the_time_that_the_ranks_have_told_of() -> None:
    """Monitors send their numbers every 15 s, each at another time."""
    collector = Collector()
    ranks = [Rank(collector, rank) for rank in range(2)]
    began, sent, found = collector.now, [0, 0], []
    for second in range(1, 41):
        collector.now = began + second
        for rank in ranks:
            if (second + 7 * rank.rank) % 15 == 0:
                rank.send(10 * (second - sent[rank.rank]))
                sent[rank.rank] = second
        for run in collector.service.runs.by_id.values():
            per_second = rates(Sample(began, None, None, 0.0, None, None), run.sample(collector.now)).collectives
            assert per_second is not None
            found.append(per_second)
    # Of the second rank nothing is known at first, so half of each collective is missing.
    assert found[7:] == [pytest.approx(10.0, rel=0.01)] * len(found[7:])
    assert len(found[7:]) > 20


def test_after_a_restart_of_the_collector_rates_begin_at_the_first_point() -> None:
    collector = Collector()
    rank = Rank(collector, 0, age=3_600.0, world=1)
    rank.send(1_000)
    (run,) = collector.service.runs.by_id.values()
    before = run.sample(collector.now)
    for _ in range(2):
        collector.now += 15.0
        rank.send(75)
    assert rates(before, run.sample(collector.now)).collectives == pytest.approx(5.0)


def test_a_quarter_of_an_hour_is_kept_and_the_first_sample() -> None:
    history = History()
    for number in range(200):
        at = number * EVERY
        assert history.is_due(at)
        history.add(sample(at, number))
        assert not history.is_due(at + EVERY / 2)
    assert len(list(history.intervals())) == KEPT - 1
    assert all(one.collectives == 1 / EVERY for one in history.intervals())
    now = sample(200 * EVERY, 400)
    latest, start = history.latest(now), history.since_start(now)
    assert latest is not None
    assert start is not None
    assert latest.collectives == pytest.approx((400 - 196) / 60)
    assert start.collectives == pytest.approx(400 / now.at)
    assert History().latest(now) is None


def test_the_api_has_rates_ranks_and_operations_with_their_call_sites() -> None:
    collector = Collector()
    ranks = [Rank(collector, rank) for rank in range(2)]
    for _ in range(5):
        for rank in ranks:
            rank.send(30, QUICK)
        (run,) = collector.service.runs.by_id.values()
        run.group_state(Group("g", "0", "default_pg", (0, 1)), 2)
        collector.service.step()
        collector.now += EVERY
    found: Any = asyncio.run(as_json(run, collector.now, 1e9 + collector.now))
    assert len(found["intervals"]["at"]) == 3
    assert found["intervals"]["collectives_per_s"] == [pytest.approx(2.0, rel=0.01)] * 3
    assert found["intervals"]["bytes_per_s"] == [pytest.approx(2 * SIZE, rel=0.01)] * 3
    assert found["latest"]["slowest"] is None
    assert found["latest"]["bus_bandwidth"] == pytest.approx(SIZE / QUICK, rel=1e-3)
    (operation,) = found["operations"]
    assert (operation["operation"], operation["calls"], operation["p99_s"]) == ("all_reduce", 300, 0.005)
    assert operation["slow"]["site"] == "train.py:1 step"
    assert len(operation["slow"]["trace_id"]) == 32


def test_the_api_names_the_rank_that_is_waited_for() -> None:
    collector = Collector()
    Rank(collector, 0).send(1)
    (run,) = collector.service.runs.by_id.values()
    state = group_in(run, Group("g", "0", "default_pg", (0, 1)))
    tally = state.waits.tallies.of(1)
    assert tally is not None
    tally.waited_for, tally.came_last = 12.0, 80
    found: Any = asyncio.run(as_json(run, collector.now, collector.now))
    assert found["ranks"] == {"rank": [1], "came_last": [80], "waited_for_s": [12.0], "waited_s": [0.0]}


@pytest.mark.parametrize("is_sampled", [False, True])
def test_who_comes_last_is_not_measured_where_only_a_sample_of_the_spans_comes(is_sampled: bool) -> None:
    run = new_run("r1")
    for name in ("g1", "g2"):  # one before it is known that spans are missing, and one after
        group = Group(name, name, "", (0, 1))
        for rank in range(2):
            of_rank = run.ranks[rank].report if rank in run.ranks else None
            number = 1 if of_rank is None else of_rank.number + 1
            sampled = 0.5 if is_sampled and name == "g1" else None
            apply(run, rank, number, 1.0, groups=(told_group(group, 1, 1),), sampled=sampled)
        for rank, took in ((0, 0.5), (1, 0.1)):
            signature = Signature("all_reduce", ((4,),), reduce_op="sum")
            call = RankCall(rank, 0, name, "collective", 1, signature, CallState.COMPLETED, duration=took)
            run.groups[name].add(call._replace(enqueued_wall=1_000.0))
    assert [state.waits.measured for state in run.groups.values()] == ([0, 0] if is_sampled else [1, 1])
    before, after = run.sample(10.0), run.sample(70.0)
    assert rates(before, after).wait == (None if is_sampled else 0.0)
