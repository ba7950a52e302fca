"""The rates of a run over time, and what the API gives of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from otel_fr_collector.jobs.history import EVERY, KEPT, History, Sample, rates
from otel_fr_collector.web.rates import rates as as_json

from otel_fr.match import Group
from tests.support.rank_metrics import QUICK, SIZE
from tests.unit.collector.test_numbers import Collector, Rank


def sample(at: float, collectives: float | None = None, lost: float = 0.0) -> Sample:
    return Sample(at, collectives, None if collectives is None else 100 * collectives, lost, None, None)


def test_rates_are_the_differences_of_totals() -> None:
    found = rates(sample(10.0, 100, 1.0), sample(30.0, 300, 5.0))
    assert (found.at, found.collectives, found.size, found.wait) == (30.0, 10.0, 1_000.0, 0.2)
    assert rates(sample(10.0), sample(30.0, 300)).collectives == 15.0  # the first numbers have come
    assert rates(sample(10.0), sample(30.0)).collectives is None


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
    assert found["intervals"]["collectives_per_s"] == [2.0] * 3
    assert found["intervals"]["bytes_per_s"] == [pytest.approx(2 * SIZE, rel=1e-3)] * 3
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
    state = run.group_state(Group("g", "0", "default_pg", (0, 1)), 2)
    assert state is not None
    tally = state.waits.tallies.of(1)
    assert tally is not None
    tally.waited_for, tally.came_last = 12.0, 80
    found: Any = asyncio.run(as_json(run, collector.now, collector.now))
    assert found["ranks"] == {"rank": [1], "came_last": [80], "waited_for_s": [12.0], "waited_s": [0.0]}
