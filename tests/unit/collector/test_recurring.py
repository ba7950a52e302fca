"""A rank that is late again and again, or by a hair, has one incident with one answer."""

from __future__ import annotations

import itertools

from otel_fr_collector import timeline

from tests.support.played_job import STALL, Job
from tests.support.virtual_collector import VirtualCollector

SLOW = STALL + 1.0
"""Seconds that the slow rank takes for a step."""


def train(collector: VirtualCollector, job: Job, steps: int) -> list[int]:
    """Rank 1 comes too late in each of these steps; returns how many lines had been published after each."""
    published = []
    for _ in range(steps):
        waiting = job.hang(1)
        collector.time.advance(SLOW)
        job.go_on(waiting)
        collector.time.advance(1.0)
        published.append(len(collector.lines()))
    return published


def test_a_rank_that_is_slow_in_each_step_has_one_incident_that_opens_twice() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        published = train(collector, job, 8)
        states = [line["state"] for line in collector.lines()]
        assert states[: published[0]][-1] == "resolved", "it may be a single pause"
        assert states.count("resolved") == 1
        assert max(after - before for before, after in itertools.pairwise(published[1:])) <= 2
        (incident,) = collector.incidents()
        assert (incident["state"], incident["culprit_ranks"]) == ("firing", [1])
        for _ in range(int(timeline.AGAIN_SECONDS)):
            job.step()
            collector.time.advance(1.1)
        (incident,) = collector.incidents()
        assert (incident["state"], incident["resolution"]) == ("resolved", "over")


def test_another_rank_that_hangs_meanwhile_has_its_own() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        train(collector, job, 3)
        job.hang(2)
        found = collector.wait_cause(lambda one: one["culprit_ranks"] == [2])
        assert found["caused_by"] is None
        assert {tuple(one["culprit_ranks"]) for one in collector.causes()} == {(1,), (2,)}


def test_a_rank_that_is_late_once_more_long_afterwards_has_another() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        train(collector, job, 1)
        for _ in range(int(timeline.AGAIN_SECONDS)):
            job.step()
            collector.time.advance(1.1)
        train(collector, job, 1)
        assert [(one["state"], one["sequence_id"]) for one in collector.incidents()] == [
            ("resolved", 2),
            ("resolved", 64),
        ]


def test_a_rank_that_lacks_a_processor_about_half_of_the_time_is_not_late_and_away_by_turns() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        for rank in job.ranks:
            rank.extra["stall_s"] = 10.0
        job.hang(1)
        began = collector.time.monotonic()
        for number in range(150):
            share = 0.45 if number // 5 % 2 else 0.55
            job.ranks[1].extra["starved_s"] = (collector.time.monotonic() - began) * share
            collector.time.advance(0.1)
        categories = [key for key, _ in itertools.groupby(line["category"] for line in collector.lines())]
    assert categories in (["missing_rank"], ["straggler", "missing_rank"])
