"""Incidents about ranks that always come last: their life, and that they neither cause nor hide a fault."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from otel_fr_collector.control import Control
from otel_fr_collector.gauges import JobGauges
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.incidents.slowness import find
from otel_fr_collector.jobs.calls import Template
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.slow_looks import SlowLooks
from otel_fr_collector.web.job_views import summary

from otel_fr.control.v1.control_pb2 import WatchRequest
from otel_fr.incident import timestamp, told
from otel_fr.match import CallState, Ending, Group, Place, Signature
from tests.support.evidence import finding
from tests.support.job_answers import job_answer
from tests.support.told import rank_in, run_in

GROUP = Group("g", "0", "default_pg", ())
TEMPLATE = Template(GROUP, 3, Signature("all_reduce", ((3, 4),)), 0, "collective", CallState.COMPLETED)
START = 10**18


class Job:
    """Three ranks; their spans arrive as they meet."""

    def __init__(self) -> None:
        self.runs, self.book = Runs(), IncidentBook(lambda: 0.0)
        self.run = run_in(self.runs)
        for rank in range(3):
            self.run.note_origin(rank, place=Place(f"gpu-{rank}"), world_size=3, resource={}, now=0.0)
        self.number = 0
        self.now = START

    def steps(self, count: int, *late: int) -> None:
        """So many steps, in which these ranks are 0.15 s late."""
        for _ in range(count):
            self.number += 1
            times = [self.now + 300_000_000 + (150_000_000 if rank in late else 0) for rank in range(3)]
            self.now = max(times) + 2_000_000
            for rank, start in enumerate(times):
                add_spans(self.run, rank, [(TEMPLATE, self.number, self.number, 0, start, self.now, None)], 1.0)

    def judge(self) -> list[IncidentChange]:
        known = {group: one.finding for group, one in self.book.open_slowness(self.run.id).items()}
        return self.book.note_slowness(self.run, 1.0, 1e9, find(self.run, known))

    def hang(self, rank: int, key: str = "hang") -> list[IncidentChange]:
        others = tuple({0, 1, 2} - {rank})
        group, number = self.run.groups["g"].group, self.number + 1
        found = finding(key=key, group=group, sequence_id=number, culprit_ranks=(rank,), waiting_ranks=others)
        return self.book.update(self.run, [found], now=2.0, wall=1e9, enqueued={}, over=())


@pytest.fixture
def job() -> Job:
    made = Job()
    made.steps(300, 1)
    return made


def test_it_opens_once_and_is_resolved_when_it_is_over(job: Job) -> None:
    (opened,) = job.judge()
    assert opened.kind is ChangeKind.OPENED
    assert (opened.data["category"], opened.data["culprit_ranks"]) == ("straggler", [1])
    assert opened.data["waiting_ranks"] == [0, 2]
    assert opened.incident.labels["severity"] == "warning"
    job.steps(100, 1)
    assert job.judge() == []
    job.steps(100)
    assert job.judge() == []
    job.steps(200)
    (resolved,) = job.judge()
    assert resolved.kind is ChangeKind.RESOLVED
    assert job.judge() == []


def test_it_is_a_warning_that_tells_since_when_the_rank_is_slow() -> None:
    job = Job()
    job.steps(1, 1)  # its first step, with compilation
    job.steps(600)
    before = job.now
    job.steps(60, 1)
    (opened,) = job.judge()
    began = 1e9 - (job.now - before) / 1e9
    assert opened.incident.started == pytest.approx(began, abs=1.0)
    assert timestamp(began)[11:18] in told(opened.data)  # type: ignore[index]
    assert opened.data["severity"] == "warning"
    assert asyncio.run(summary(job.run, job.book, 1.0, 1e9))["state"] == "slow"
    job.hang(1)
    assert asyncio.run(summary(job.run, job.book, 1.0, 1e9))["state"] == "incident"


def test_a_second_rank_is_an_update_and_a_return_opens_it_again(job: Job) -> None:
    (opened,) = job.judge()
    job.steps(300, 2)
    changes = job.judge() + job.judge()
    assert [change.kind for change in changes] == [ChangeKind.RESOLVED]
    job.steps(300, 2)
    (again,) = job.judge()
    assert (again.kind, again.data["culprit_ranks"]) == (ChangeKind.OPENED, [2])
    assert again.incident.id == opened.incident.id


@pytest.mark.parametrize("missed", [1, 0], ids=["the slow rank", "a rank that waited"])
@pytest.mark.parametrize("is_known", [True, False], ids=["slow before", "slow afterwards"])
def test_a_hang_and_a_slow_rank_are_incidents_of_their_own(job: Job, missed: int, is_known: bool) -> None:
    changes = [*job.judge(), *job.hang(missed)] if is_known else [*job.hang(missed), *job.judge()]
    assert {change.kind for change in changes} == {ChangeKind.OPENED}
    found = [(one.data["category"], one.incident.labels["severity"]) for one in changes]
    assert sorted(found) == [("missing_rank", "critical"), ("straggler", "warning")]
    job.steps(100, 1)
    assert job.judge() == []
    assert [one.cause for one in job.book.open_of(job.run.id)] == [None, None]


def test_it_ends_with_the_rank_with_the_group_and_with_the_job(job: Job) -> None:
    job.judge()
    job.run.ranks[1].ended, job.run.ranks[1].ending = 5.0, Ending.CLEAN
    (resolved,) = job.judge()
    assert resolved.kind is ChangeKind.RESOLVED
    # The others are still there: they save a checkpoint, for example.
    assert job.judge() == []


def test_a_rank_that_has_left_before_is_not_named(job: Job) -> None:
    job.run.ranks[1].ended, job.run.ranks[1].ending = 5.0, Ending.CLEAN
    assert job.judge() == []


def test_an_incident_from_before_a_restart_stays_until_more_is_known(job: Job) -> None:
    (opened,) = job.judge()
    after = Job()
    after.book.restore([opened.incident], 1.0, 1e9)
    assert after.judge() == []
    after.steps(30, 1)
    assert after.judge() == []
    after.steps(300, 1)
    assert after.judge() == []
    after.steps(400)
    (resolved,) = after.judge()
    assert resolved.kind is ChangeKind.RESOLVED


def test_a_run_that_was_dropped_and_begins_anew_is_asked_once_its_rank_is_back(job: Job) -> None:
    """Until then, no straggler of any run was looked for."""
    control = Control()
    looks = SlowLooks(job.runs, control)
    with control.watch(WatchRequest(job_id="job", run_id="r", rank=1)) as monitor:
        looks.note(job.judge()[0])
        job.runs._drop(job.run)
        run = run_in(job.runs)
        looks.step(1.0)
        assert monitor._commands.empty()
        rank_in(run, 1)
        looks.step(2.0)
        assert monitor._commands.qsize() == 1


def test_the_end_of_one_incident_does_not_end_the_looks_of_another(job: Job) -> None:
    """Ranks may come last in several groups of a run."""
    control = Control()
    looks = SlowLooks(job.runs, control)
    found = find(job.run, {})["g"]
    assert found is not None
    assert found.group is not None
    beside = dataclasses.replace(found, key="other", group=dataclasses.replace(found.group, id="h"))
    changes = [
        *job.book.note_slowness(job.run, 1.0, 1e9, {"g": found, "h": beside}),
        *job.book.note_slowness(job.run, 1.1, 1e9, {"h": None}),
    ]
    assert [change.kind for change in changes] == [ChangeKind.OPENED, ChangeKind.OPENED, ChangeKind.RESOLVED]
    with control.watch(WatchRequest(job_id="job", run_id="r", rank=1)) as monitor:
        for change in changes:
            looks.note(change)
        looks.step(2.0)
        assert monitor._commands.qsize() == 1


def wait_ratios(runs: Runs) -> dict[str, float]:
    """The metric's values by rank."""
    families = JobGauges(runs, list, lambda _: (), Control()).collect()
    ratios = next(family for family in families if family.name == "otel_fr_straggler_wait_ratio")
    return {sample.labels["rank"]: sample.value for sample in ratios.samples}


def test_the_metric_of_groups_with_the_same_labels_is_the_highest(job: Job) -> None:
    """Groups of the same name have the same labels, in one run or in several runs of a job."""
    milder = Job()
    for _ in range(150):
        milder.steps(1, 1)
        milder.steps(1)
    job.run.groups["h"] = milder.run.groups["g"]
    assert wait_ratios(milder.runs)["1"] < wait_ratios(job.runs)["1"] == pytest.approx(0.337, rel=0.02)


def test_metrics_list_and_page_show_who_comes_last(job: Job) -> None:
    assert wait_ratios(job.runs) == {"1": pytest.approx(0.337, rel=0.02)}
    waited = pytest.approx(0.33, abs=0.01)
    shown = asyncio.run(summary(job.run, job.book, 1.0, 1e9))["late"]
    assert shown == {"rank": 1, "process_group": "default_pg", "seconds": 0.15, "share": 1.0, "waited": waited}
    ranks: Any = asyncio.run(job_answer(job.run, job.book, 1.0, 1e9))["ranks"]
    assert ranks["late"] == [None, [0, 1.0, 0.15, waited], None]
