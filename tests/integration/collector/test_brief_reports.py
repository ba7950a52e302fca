"""Brief rank reports to a collector that lacks the full reports before, as after its restart."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from otel_fr.config import Config
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.otlp_sender import GrpcTarget
from tests.support.collector_process import running
from tests.support.played_job import RankPlayer
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import wait_for


def send_brief(rank: RankPlayer) -> None:
    counts = ("id", "enq", "done", "p2p", "issued", "ended", "gone")
    groups = [{key: group[key] for key in counts} for group in rank.report()["groups"]]
    last, rank.last = rank.last, None
    rank.send_report(groups=groups, brief=True)
    rank.last = last


def the_job(collector: VirtualCollector) -> dict[str, Any]:
    (job,) = collector.api("jobs")["jobs"]
    return collector.api(f"jobs/{job['id']}")


def test_counts_are_taken_and_the_monitor_is_asked_for_the_rest(collector: VirtualCollector) -> None:
    job = collector.job(2)
    for rank in job.ranks:
        rank.counts[job.world.id] = [7, 7, 0]
    collector.watch(job, 0)
    monitor = collector.watch(job, 1)
    send_brief(job.ranks[1])
    collector.time.advance(2.0)
    assert monitor.next_command().WhichOneof("command") == "report"
    (group,) = the_job(collector)["groups"]
    assert (group["enqueued"], group["name"]) == ([7, 7], "")
    job.ranks[1].send_report()
    job.ranks[0].counts[job.world.id] = [8, 8, 0]
    send_brief(job.ranks[0])
    assert collector.time.wait_for(lambda: the_job(collector)["groups"][0]["name"] == "0")
    (group,) = the_job(collector)["groups"]
    assert (group["enqueued"], group["completed"], group["ranks"]) == ([7, 8], [7, 8], "0,1")
    assert collector.metric("otel_fr_collector_rank_reports_total", outcome="accepted") == 3


def test_monitors_are_allowed_longer_intervals_while_they_listen(tmp_path: Path) -> None:
    """One stream serves all monitors of a machine."""
    with running(tmp_path) as collector:
        target = GrpcTarget(collector.grpc, True, None, ())

        def client(rank: int) -> ControlClient:
            identity = RankIdentity.of({"job_id": "job", "run_id": "run", "rank": rank}, Config(), 1)
            made = ControlClient(target, lambda: identity, lambda: None, folder=tmp_path)
            assert made.report_interval == 1.0
            made.start()
            assert wait_for(lambda: made.report_interval == 5.0)
            return made

        clients = [client(rank) for rank in range(3)]
        # On a busy machine, a monitor may not find the others in time, and then watches alone for a while.
        assert wait_for(lambda: collector.metric("otel_fr_collector_control_streams") == 1)
        collector.kill()
        assert wait_for(lambda: all(one.report_interval == 1.0 for one in clients))
        for one in clients:
            one.stop()


def test_a_rank_that_reports_seldom_and_falls_silent_with_its_host_is_named(collector: VirtualCollector) -> None:
    """Reports are 2.5 s apart, the default. The rank's next report is late before its peers have waited for 4 s."""
    with collector.job(3) as job:
        for rank in job.ranks:
            rank.extra |= {"every_s": 2.5, "stall_s": 5.0}
        job.step()
        job.all_reported()
        job.ranks[1].silent = True
        job.skip(1)
        incident = collector.wait_cause()
        assert (incident["culprit_ranks"], incident["waiting_ranks"]) == ([1], [0, 2])
        begun, found = (
            datetime.fromisoformat(incident[key].replace("Z", "+00:00")) for key in ("started_at", "detected_at")
        )
        assert (found - begun).total_seconds() >= 4.0, "no rank is given up before its next report is late"
