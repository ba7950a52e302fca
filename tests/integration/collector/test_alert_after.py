"""When an incident is told: on pages, in logs and traces at once, to people only after a wait has lasted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notified_site import HOLD, Site
from tests.support.otlp_backends import MemoryBackend
from tests.support.times import VirtualTime


def test_a_wait_is_shown_at_once_and_told_when_it_has_lasted(site: Site) -> None:
    collector, receiver = site.collector, site.receiver
    with collector.job(3) as job:
        job.step()
        began = site.time.monotonic()
        waiting = job.skip(1)
        collector.wait_cause()
        assert "missing_rank" in collector.get("/api/v1/incidents")
        assert (collector.metric("otel_fr_incidents_open"), site.alerting()) == (1, 0)
        site.time.advance(HOLD - 2.0)
        assert receiver.told == []
        site.time.advance(2.0)
        assert receiver.told == [("opened", "missing_rank")]
        assert HOLD - 0.5 <= receiver.told_at[0] - began <= HOLD + 0.5
        assert site.alerting() == 1
        job.go_on(waiting)
        collector.wait_cause(lambda one: one["state"] == "resolved")
        assert receiver.told == [("opened", "missing_rank"), ("resolved", "missing_rank")]


def test_a_wait_that_ends_in_time_is_never_told_and_begins_anew_when_it_comes_back(site: Site) -> None:
    collector = site.collector
    with collector.job(3) as job:
        job.step()
        for _ in range(4):
            waiting = job.skip(1)
            site.time.advance(HOLD - 5.0)
            job.go_on(waiting)
            site.time.advance(10.0)
        (incident,) = collector.causes()
        assert incident["state"] == "firing", "it may happen once more"
        site.time.advance(2 * HOLD)
        assert site.receiver.told == []
        job.skip(1)
        site.time.advance(HOLD + 1.0)
    assert site.receiver.told[0] == ("opened", "missing_rank")


def test_a_death_is_told_at_once_and_so_is_a_wait_that_becomes_one(site: Site) -> None:
    collector, receiver = site.collector, site.receiver
    with collector.job(3) as job:
        job.hang(1)
        collector.wait_cause()
        assert receiver.told == []
        job.ranks[1].exit(signal=9)
        collector.wait_cause(lambda one: one["category"] == "rank_dead")
        assert receiver.told[0] == ("opened", "rank_dead")
        assert [kind for kind, _ in receiver.told].count("opened") == 1


@pytest.mark.parametrize("how", ["the others have given up", "the rank has left"])
def test_a_wait_that_cannot_end_any_more_is_told_at_once(site: Site, how: str) -> None:
    with site.collector.job(3) as job:
        waiting = job.hang(1)
        site.collector.wait_cause()
        assert site.receiver.told == []
        if how == "the rank has left":
            job.ranks[1].exit(clean=True)
        else:
            job.ranks[0].fail(waiting[0])
        site.time.advance(5.0)
        assert site.receiver.told[:1] == [("opened", "missing_rank")]


def test_a_mismatch_is_over_with_a_job_that_ends_well(site: Site) -> None:
    with site.collector.job(2) as job:
        job.step()
        calls = [job.ranks[rank].issue(job.world, reduce_op=op) for rank, op in ((0, "sum"), (1, "max"))]
        job.go_on(calls)
        site.collector.wait_cause()
        job.step()
        site.time.advance(5.0)
        for rank in job.ranks:
            rank.exit(clean=True)
        site.time.advance(5.0)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["resolution"]) == ("resolved", "over")
        site.time.advance(120.0)
        kinds = [kind for kind, _ in site.receiver.told]
        assert (kinds[0], kinds.count("opened"), kinds[-1]) == ("opened", 1, "resolved")


@pytest.mark.parametrize("fault", ["size_mismatch", "deadlock", "section_overrun"])
def test_what_cannot_mend_itself_is_told_at_once(site: Site, fault: str) -> None:
    collector = site.collector
    with collector.job(2) as job:
        other = job.group("1", [0, 1], "second")
        job.step()
        if fault == "size_mismatch":
            for rank, sizes in ((0, [[4]]), (1, [[5]])):
                job.ranks[rank].issue(job.world, sizes=sizes)
        elif fault == "deadlock":
            for rank, group in ((0, job.world), (1, other)):
                job.ranks[rank].issue(group)
        else:
            item = {"kind": "section", "name": "save", "age_s": 31.0, "limit_s": 30.0, "overdue": True}
            job.ranks[0].extra["activity"] = [item]
        collector.wait_cause()
        assert site.receiver.told[0] == ("opened", fault)
        assert site.alerting() == 1


def test_traces_do_not_wait() -> None:
    backend = MemoryBackend()
    site = Site(forward=[backend])
    with site.collector as collector, collector.job(2) as job:
        job.hang(1)
        incident = collector.wait_cause()
        site.time.advance(5.0)
        assert site.receiver.told == []
        assert any(f"INCIDENT {incident['category']}".encode() in request for request in backend.taken)


@pytest.mark.parametrize("lasted", [5.0, HOLD + 1.0])
def test_a_restart_neither_tells_early_nor_forgets(tmp_path: Path, lasted: float) -> None:
    clock = VirtualTime()
    first = Site(clock, data=tmp_path / "data")
    with first.collector.job(2) as job:
        waiting = job.hang(1)
        first.collector.wait_cause()
        clock.advance(lasted)
        was_told = lasted > HOLD
        assert bool(first.receiver.told) is was_told
        first.collector.kill()
        second = Site(clock, data=tmp_path / "data")
        with second.collector:
            job.collector = second.collector
            clock.advance(1.0)
            assert second.receiver.resumed == (["firing"] if was_told else [])
            assert second.receiver.told == []
            clock.advance(HOLD)
            assert [kind for kind, _ in second.receiver.told] == ([] if was_told else ["opened"])
            job.go_on(waiting)
            assert clock.wait_for(lambda: second.receiver.told[-1:] == [("resolved", "missing_rank")])


def test_a_restart_does_not_tell_of_a_wait_that_ended_in_time(tmp_path: Path) -> None:
    clock = VirtualTime()
    first = Site(clock, data=tmp_path / "data")
    with first.collector as collector, collector.job(2) as job:
        waiting = job.hang(1)
        collector.wait_cause()
        job.go_on(waiting)
        collector.wait_cause(lambda one: one["state"] == "resolved")
    second = Site(clock, data=tmp_path / "data")
    with second.collector:
        clock.advance(2 * HOLD)
    assert (second.receiver.resumed, second.receiver.told) == ([], [])
