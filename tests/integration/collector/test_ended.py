"""A job that has ended by a fault: its incidents end at once, say what to do then, and people are told all the same."""

from __future__ import annotations

from otel_fr_collector import timeline
from otel_fr_collector.incidents.what_to_do import ONCE_OVER, WHAT_TO_DO

from otel_fr.match import Category
from tests.support.notified_site import Site
from tests.support.played_job import Issued, Job

SECONDS = 13.0
"""From the end of the last rank until the incidents have ended."""
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
        job.step()
        waiting = job.skip(1)
        site.collector.wait_cause()
        for call in waiting:
            job.ranks[call.rank].fail(call)
            job.ranks[call.rank].exit(code=1, exception={"type": "RuntimeError", "message": "gloo: Timed out waiting"})
        site.time.advance(60.0)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["culprit_ranks"]) == ("firing", [1])


def test_why_a_rank_was_waited_for_stays_when_its_peers_time_out_and_it_comes(site: Site) -> None:
    with site.collector.job(3) as job:
        job.step()
        waiting = job.skip(1)
        first = site.collector.wait_cause()
        assert (first["category"], first["culprit_ranks"]) == ("missing_rank", [1])
        for call in waiting:
            job.ranks[call.rank].fail(call)
        site.time.advance(3.0)  # that they gave up is judged before it comes
        job.ranks[1].issue(job.world, gap=60.0)
        for rank in job.ranks:
            rank.send_report()
        last = site.collector.wait_cause(lambda one: "timed out" in " ".join(one["details"]))
        stays = ("id", "category", "rule", "culprit_ranks", "what_to_do")
        assert [last[key] for key in stays] == [first[key] for key in stays]
