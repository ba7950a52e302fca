"""Overdue heartbeats and sections in played ranks' reports: one incident from first to last."""

from __future__ import annotations

from typing import Any

from otel_fr import semconv
from tests.support.played_job import STALL, Job
from tests.support.virtual_collector import VirtualCollector
from tests.support.whole_text import whole_text

SECTION = {"kind": "section", "name": "loading données", "age_s": 3.0, "limit_s": 2.0, "overdue": True}
BEAT = {"kind": "heartbeat", "age_s": 70.0, "limit_s": 60.0, "overdue": True}
FINE = {"kind": "section", "name": "loading", "age_s": 1.0, "limit_s": 2.0}
SAVE = {"kind": "section", "name": "save", "age_s": 3.0, "limit_s": 300.0}
STACK = 'Thread MainThread (most recent call last):\n  File "/job/data.py", line 17, in load\n'


def overdue(job: Job, rank: int, *items: dict[str, Any]) -> None:
    job.ranks[rank].extra["activity"] = list(items)
    job.ranks[rank].send_report(semconv.EVENT_OVERDUE, stack=STACK, site="/job/data.py:17 load")


def test_one_incident_from_the_limit_to_the_peers_that_wait_and_to_its_end(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        for _ in range(3):
            job.step()
        overdue(job, 1, SECTION)
        first = collector.wait_cause()
        assert (first["category"], first["culprit_ranks"], first["waiting_ranks"]) == ("section_overrun", [1], [])
        assert "in section loading données for" in whole_text(first)
        assert first["values"] == {"1": "section loading données, limit 2.0 s"}
        assert first["call_sites"] == {"1": "/job/data.py:17 load"}
        assert first["stacks"]["1"] == STACK
        waiting = job.skip(1)
        second = collector.wait_cause(lambda one: one["waiting_ranks"])
        assert (second["id"], second["category"]) == (first["id"], "section_overrun")
        assert (second["culprit_ranks"], second["waiting_ranks"]) == ([1], [0, 2])
        job.ranks[1].extra["activity"] = [FINE]
        job.go_on(waiting)
        assert collector.time.wait_for(lambda: [one["state"] for one in collector.causes()] == ["resolved"])
        assert [one["id"] for one in collector.causes()] == [first["id"]]


def test_an_incident_that_opened_as_missing_rank_becomes_what_explains_it(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        for _ in range(3):
            job.step()
        job.ranks[1].extra["activity"] = [BEAT | {"age_s": 3.0, "overdue": False}]
        job.skip(1)
        first = collector.wait_cause()
        assert first["category"] == "missing_rank"
        overdue(job, 1, BEAT)
        second = collector.wait_cause(lambda one: one["category"] == "heartbeat_missed")
        assert (second["id"], second["culprit_ranks"], second["waiting_ranks"]) == (first["id"], [1], [0, 2])
        assert len(collector.causes()) == 1


def test_a_rank_that_saves_for_too_long_and_one_that_hangs_have_an_incident_each(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.step()
        overdue(job, 0, SECTION)
        saves = collector.wait_cause()
        waits = [job.ranks[1].issue(job.world)]
        hangs = collector.wait_cause(lambda one: one["category"] == "missing_rank")
        assert (saves["culprit_ranks"], hangs["culprit_ranks"]) == ([0], [2])
        job.ranks[0].extra["activity"] = [FINE]
        waits.append(job.ranks[0].issue(job.world))
        collector.wait_cause(lambda one: one["id"] == saves["id"] and one["state"] == "resolved")
        states = {tuple(one["culprit_ranks"]): one["state"] for one in collector.causes()}
        assert states == {(0,): "resolved", (2,): "firing"}
        job.go_on(waits)
        assert collector.time.wait_for(lambda: {one["state"] for one in collector.causes()} == {"resolved"})
        assert {tuple(line["culprit_ranks"]) for line in collector.lines()} == {(0,), (2,)}


def test_a_rank_that_saves_is_the_one_that_is_left(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.step()
        overdue(job, 0, SECTION)
        job.ranks[1].issue(job.world)
        hangs = collector.wait_cause(lambda one: one["category"] == "missing_rank")
        job.ranks[2].issue(job.world)
        collector.time.advance(3 * STALL)
        (left,) = [one for one in collector.causes() if one["category"] == "section_overrun"]
        assert (left["culprit_ranks"], left["state"]) == ([0], "firing")
        assert all(one["culprit_ranks"] == [2] for one in collector.lines() if one["id"] == hangs["id"])


def test_a_section_within_its_limit_excuses_its_rank_and_its_end_gives_it_time_to_come(
    collector: VirtualCollector,
) -> None:
    with collector.job(3) as job:
        for _ in range(3):
            job.step()
        job.ranks[0].extra["activity"] = [SAVE]
        waiting = job.skip(0)
        collector.time.advance(22.0)
        assert collector.incidents() == []
        del job.ranks[0].extra["activity"]
        collector.time.advance(0.5 * STALL)
        job.go_on(waiting)
        for _ in range(3):
            job.step()
        job.all_reported()
        assert collector.incidents() == []


def test_a_section_that_begins_while_its_rank_stands_still_excuses_it(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.hang(0)
        collector.time.advance(0.5 * STALL)
        job.ranks[0].extra["activity"] = [SAVE]
        collector.time.advance(10 * STALL)
        assert collector.incidents() == []


def test_once_the_limit_has_passed_the_incident_opens_and_says_so(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        for _ in range(3):
            job.step()
        job.ranks[0].extra["activity"] = [SAVE]
        job.skip(0)
        collector.time.advance(60.0)
        assert collector.incidents() == []
        overdue(job, 0, SAVE | {"age_s": 300.5, "overdue": True})
        collector.time.advance(2.5)
        (incident,) = collector.causes()
        assert (incident["category"], incident["culprit_ranks"]) == ("section_overrun", [0])
        assert incident["waiting_ranks"] == [1, 2]


def test_a_rank_that_left_its_section_and_does_not_come_is_named(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.step()
        job.ranks[0].extra["activity"] = [SAVE]
        job.skip(0)
        collector.time.advance(10.0)
        del job.ranks[0].extra["activity"]
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [0])


def test_a_section_excuses_no_rank_that_ends_falls_silent_or_whose_peers_give_up(collector: VirtualCollector) -> None:
    for number, end in enumerate(("dies", "silent", "peers")):
        with collector.job(3, job_id=f"job-{end}") as job:
            job.step()
            job.ranks[0].extra["activity"] = [SAVE]
            calls = job.skip(0)
            collector.time.advance(10.0)
            assert len(collector.incidents()) == number
            if end == "dies":
                job.ranks[0].exit(signal=9)
            elif end == "silent":
                job.ranks[0].silent = True
            else:
                for one in calls:
                    job.ranks[one.rank].fail(one, "RuntimeError: Timed out waiting 10000ms for recv operation")
                    job.ranks[one.rank].exit(code=1, exception={"type": "RuntimeError", "message": "Timed out"})
            assert collector.time.wait_for(lambda: len(collector.causes()) == number + 1)  # noqa: B023
            assert next(one for one in collector.causes() if one["job"] == job.id)["culprit_ranks"] == [0]


def test_the_job_shows_what_is_overdue_and_the_step_of_each_rank(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.step()
        job.ranks[0].extra |= {"activity": [FINE], "step": 8}
        job.ranks[1].extra["step"] = 7
        overdue(job, 1, BEAT, SECTION)
        collector.wait_cause()
        job.all_reported()
        (found,) = collector.api("jobs")["jobs"]
        ranks = collector.api(f"jobs/{found['id']}")["ranks"]
    assert ranks["step"] == [8, 7]
    kind, name, seconds, limit = ranks["overdue"][1]
    assert (ranks["overdue"][0], kind, name, limit) == (None, "heartbeat", "", 60.0)
    assert 70.0 <= seconds < 80.0


def test_it_is_resolved_by_the_next_heartbeat_and_opens_again(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.step()
        for _ in range(2):
            overdue(job, 1, BEAT)
            assert collector.time.wait_for(lambda: [one["state"] for one in collector.causes()] == ["firing"])
            job.ranks[1].extra["activity"] = [FINE]
            assert collector.time.wait_for(lambda: [one["state"] for one in collector.causes()] == ["resolved"])


def test_a_healthy_rank_with_sections_raises_nothing(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        for rank in job.ranks:
            rank.extra["activity"] = [FINE, {"kind": "heartbeat", "age_s": 1.0}, {"kind": "made up", "overdue": True}]
        for _ in range(20):
            job.step()
        job.all_reported()
        assert collector.incidents() == []
