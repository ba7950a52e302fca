"""Ends of ranks and jobs: their effect on open incidents, ends that are no incidents, and who hears of them."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.what_to_do import ONCE_OVER, WHAT_TO_DO

from otel_fr.match import Category
from tests.support.notified_site import Site
from tests.support.played_job import STALL, Issued, Job
from tests.support.times import VirtualTime
from tests.support.virtual_collector import VirtualCollector
from tests.support.whole_text import whole_text


def _cut_short(job: Job, call: Issued) -> None:
    """Send the span of a call in flight, as the monitor does when the rank ends."""
    if call.state == "scheduled":
        call.error = "rank_exited"
        job.ranks[call.rank].send_spans([call.span(job.run, job.time.monotonic())])


def _revisions(collector: VirtualCollector) -> list[dict[str, Any]]:
    return [line for line in collector.lines() if line["caused_by"] is None]


@pytest.mark.parametrize("state", ["scheduled", "unknown"])
@pytest.mark.parametrize("victims", [(0,), (0, 2, 3)])
def test_a_watchdogs_abort_does_not_change_who_is_missing(state: str, victims: tuple[int, ...]) -> None:
    with VirtualCollector() as collector, collector.job(4) as job:
        waiting = job.hang(1)
        for call in waiting:
            call.state = state
            if state == "unknown":  # its span is sent at the enqueue, because nobody will see its end
                job.ranks[call.rank].send_spans([call.span(job.run, job.time.monotonic())])
        collector.wait_cause()
        for call in waiting:
            if call.rank in victims:
                _cut_short(job, call)
                job.ranks[call.rank].exit(signal=signal.SIGABRT)
        collector.wait_cause(lambda incident: "aborted by signal 6" in whole_text(incident))
        for rank in job.ranks:  # torchrun ends the other ranks
            if not rank.ended:
                rank.exit(signal=signal.SIGTERM)
        last = collector.wait_cause(lambda incident: "signal 15" in whole_text(incident))
        assert {(line["category"], tuple(line["culprit_ranks"])) for line in _revisions(collector)} == {
            ("missing_rank", (1,))
        }
        assert len({line["id"] for line in _revisions(collector)}) == 1
        assert last["waiting_ranks"] == [0, 2, 3]
        assert last["stuck_on"] == "host"


def _destroy_groups(job: Job) -> list[dict[str, Any]]:
    """Return the groups in the form of reports from ranks that have destroyed them."""
    return [{**group, "gone": True} for group in job.ranks[0].report()["groups"]]


def test_a_status_other_than_0_after_all_groups_were_destroyed_opens_no_incident() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        job.step()
        gone = _destroy_groups(job)
        for rank in job.ranks[:2]:
            rank.exit(code=1, groups=gone)
        # A real fault later shows that the collector has judged the ends, too.
        job.ranks[2].exit(signal=signal.SIGSEGV)
        found = collector.wait_cause()
        assert (found["category"], found["culprit_ranks"]) == ("rank_dead", [2])
        collector.stop()
        assert {tuple(line["culprit_ranks"]) for line in collector.lines()} == {(2,)}


def test_a_rank_that_left_and_that_others_wait_for_later_is_dead() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        job.step()
        job.ranks[1].exit(code=1, groups=_destroy_groups(job))
        job.all_reported()
        assert collector.lines() == []
        job.skip(1)
        found = collector.wait_cause()
        assert (found["category"], found["culprit_ranks"], found["sequence_id"]) == ("rank_dead", [1], 2)


def test_the_calls_that_fail_as_a_rank_leaves_are_judged_once_it_has_left() -> None:
    """The interpreter takes some time to end. Its exit status shows who is at fault."""
    clock = VirtualTime()
    with VirtualCollector(clock) as collector, collector.job(3) as job:
        job.step()
        job.ranks[1].extra["exiting"] = True
        clock.advance(0.1)
        for call in job.skip(1):
            rank = job.ranks[call.rank]
            rank.fail(call, "collective_failed")
            rank.exit(code=1, exception={"type": "RuntimeError", "message": "[gloo] Connection closed by peer"})
        clock.advance(2.0)
        job.ranks[1].exit(clean=True)
        collector.wait_cause()
        clock.advance(5.0)
        found = {(line["category"], tuple(line["culprit_ranks"])) for line in _revisions(collector)}
        assert found == {("missing_rank", (1,))}


def test_an_incident_ends_when_the_rank_that_waited_has_given_up_and_gone_on() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        job.step()
        call = job.ranks[1].issue(job.world, "recv", kind="p2p", peer=0, tag=0)
        opened = collector.wait_cause()
        assert opened["culprit_ranks"] == [0]
        job.ranks[1].fail(call)
        job.step()
        resolved = collector.wait_cause(lambda incident: incident["state"] == "resolved")
        assert resolved["id"] == opened["id"]
        for rank in job.ranks:
            rank.exit(code=0, groups=_destroy_groups(job))
    assert {line["id"] for line in _revisions(collector)} == {opened["id"]}


def test_a_rank_with_one_barrier_more_than_ranks_that_ended_well_is_named_alone() -> None:
    """``if rank == 0: dist.barrier()`` at the end of a program."""
    with VirtualCollector() as collector, collector.job(3) as job:
        job.step()
        job.ranks[0].issue(job.world, op="barrier")
        for rank in job.ranks[1:]:
            rank.exit(clean=True, groups=[{**group, "gone": True} for group in rank.report()["groups"]])
        cause = collector.wait_cause()
        assert (cause["rule"], cause["culprit_ranks"]) == ("call_too_many", [0])
        assert cause["what_to_do"] == "End the job. Give all ranks the same steps and calls, and start the job again."
        collector.time.advance(10.0)
        (cause,) = collector.causes()
    assert {tuple(one["culprit_ranks"]) for one in collector.incidents()} == {(0,)}


def test_while_ranks_end_one_after_the_other_nobody_is_accused_by_one_that_calls_once_more() -> None:
    with VirtualCollector() as collector, collector.job(4) as job:
        job.step()
        job.ranks[0].issue(job.world)
        job.ranks[1].exit(clean=True)
        collector.time.advance(1.5 * STALL)
        assert collector.causes() == []
        for rank in job.ranks[2:]:
            rank.exit(clean=True, groups=_destroy_groups(job))
        collector.time.advance(1.5 * STALL)
        assert collector.causes() != []
        assert not {2, 3} & {rank for one in collector.causes() for rank in one["culprit_ranks"]}


def test_ranks_that_do_not_end_are_named_in_the_end() -> None:
    with VirtualCollector() as collector, collector.job(4) as job:
        job.step()
        job.ranks[0].issue(job.world)
        job.ranks[1].exit(clean=True, groups=_destroy_groups(job))
        assert collector.wait_cause()["culprit_ranks"] == [2, 3]


SECONDS = 13.0
"""Seconds from the last rank's end until the incidents have ended."""
REFUSED = {"type": "RuntimeError", "message": "[enforce fail at allreduce.cc:23] op.preamble.length <= op.nbytes"}


def mismatch(job: Job) -> list[Issued]:
    job.step()
    return [job.ranks[rank].issue(job.world, sizes=[[4 + rank]]) for rank in range(2)]


def die_of_it(job: Job) -> None:
    for call in mismatch(job):
        job.ranks[call.rank].fail(call, "error")
        job.ranks[call.rank].exit(code=1, exception=REFUSED)


def test_ranks_that_died_of_a_mismatch_are_no_job_that_is_to_be_ended(site: Site) -> None:
    with site.collector.job(2) as job:
        die_of_it(job)
        first = site.collector.wait_cause()
        assert (first["state"], first["category"]) == ("firing", "size_mismatch")
        site.time.advance(SECONDS)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["resolution"]) == ("resolved", "ended")
        assert cause["what_to_do"] == ONCE_OVER[Category.SIZE_MISMATCH]
        (found,) = site.jobs()
        assert (found["state"], found["incidents"]) == ("failed", [])
        told = [kind for kind, _ in site.receiver.told]
        assert (told[0], told[-1], told.count("opened")) == ("opened", "resolved", 1)
        site.time.advance(60.0)
        assert [kind for kind, _ in site.receiver.told] == told, "it does not open again"


def test_the_alert_of_a_job_that_has_ended_lasts_until_people_are_told(site: Site) -> None:
    with site.collector.job(2) as job:
        die_of_it(job)
        site.collector.wait_cause()
        site.time.advance(SECONDS)
        assert (site.collector.metric("otel_fr_incidents_open"), site.alerting()) == (0, 1)
        site.time.advance(timeline.TOLD_SECONDS)
        assert site.alerting() == 0


def test_a_mismatch_in_a_job_that_ended_well_still_says_what_cannot_be_trusted(site: Site) -> None:
    with site.collector.job(2) as job:
        job.go_on(mismatch(job))
        cause = site.collector.wait_cause()
        assert cause["what_to_do"] == WHAT_TO_DO[Category.SIZE_MISMATCH]
        job.step()
        for rank in job.ranks:
            rank.exit(clean=True)
        site.time.advance(SECONDS)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["resolution"]) == ("resolved", "over")
        assert cause["what_to_do"] == ONCE_OVER[Category.SIZE_MISMATCH]
        assert cause["what_to_do"] in site.collector.said()
        assert site.alerting() == 1


def test_a_wait_that_was_held_back_is_told_once_the_job_has_ended_by_it(site: Site) -> None:
    with site.collector.job(2) as job:
        job.step()
        (call,) = job.skip(1)
        site.collector.wait_cause()
        assert site.receiver.told == []
        job.ranks[0].fail(call)
        job.ranks[0].exit(code=1, exception={"type": "RuntimeError", "message": "gloo: Timed out waiting 1000ms"})
        job.ranks[1].exit(signal=9)
        site.time.advance(SECONDS)
        kinds = [kind for kind, _ in site.receiver.told]
        assert (kinds[0], kinds[-1]) == ("opened", "resolved")
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["resolution"]) == ("resolved", "ended")
        assert cause["what_to_do"]


def test_a_job_of_which_a_rank_is_not_known_to_have_ended_may_go_on(site: Site) -> None:
    with site.collector.job(3) as job:
        waiting = job.hang(1)
        site.collector.wait_cause()
        for call in waiting:
            job.ranks[call.rank].fail(call)
            job.ranks[call.rank].exit(code=1, exception={"type": "RuntimeError", "message": "gloo: Timed out waiting"})
        site.time.advance(60.0)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["culprit_ranks"]) == ("firing", [1])


def test_why_a_rank_was_waited_for_stays_when_its_peers_time_out_and_it_comes(site: Site) -> None:
    with site.collector.job(3) as job:
        waiting = job.hang(1)
        first = site.collector.wait_cause()
        assert (first["category"], first["culprit_ranks"]) == ("missing_rank", [1])
        for call in waiting:
            job.ranks[call.rank].fail(call)
        site.time.advance(3.0)  # their end is judged before the late rank comes
        job.ranks[1].issue(job.world, gap=60.0)
        for rank in job.ranks:
            rank.send_report()
        last = site.collector.wait_cause(lambda one: "timed out" in " ".join(one["details"]))
        stays = ("id", "category", "rule", "culprit_ranks", "what_to_do")
        assert [last[key] for key in stays] == [first[key] for key in stays]
