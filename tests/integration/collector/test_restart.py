"""Incidents outlive the collector. One is killed, and the next continues with the same data and a running job."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
from pathlib import Path

from tests.support.collector_process import STORED_FIRST, patched, start
from tests.support.collector_view import CollectorView
from tests.support.commands import otel_fr
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.played_job import Job
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import wait_for

IMPATIENT = patched(storage__sqlite_backend__RETRY=0.2, forward__forwarder__CLEAN_EVERY=0.2, **STORED_FIRST)
"""Lets the collector retry an unusable file soon."""


def states(collector: CollectorView) -> list[tuple[str, str]]:
    """Return id and state of each incident that the collector lists."""
    return [(one["id"], one["state"]) for one in collector.api("incidents")["incidents"]]


def test_an_open_incident_continues_after_sigkill_and_is_published_once(tmp_path: Path) -> None:
    alerts, hook = AlertSink(), Receiver()
    options = ("--alertmanager", alerts.url, "--webhook", hook.url + "/in")
    with contextlib.ExitStack() as stack:
        stack.callback(alerts.close)
        stack.callback(hook.close)
        first = stack.enter_context(start(tmp_path, 1, *options))
        job = stack.enter_context(Job(first, 3))
        waiting = job.hang(1)
        opened = first.wait_cause()
        assert wait_for(lambda: alerts.posts and told_and_noted(tmp_path / "data"))
        posts_before = len(hook.requests)
        first.kill()
        before = alerts.posts[-1][0]
        alerts.posts.clear()

        second = stack.enter_context(start(tmp_path, 2, *options))
        assert states(second) == [(opened["id"], "firing")]
        assert wait_for(lambda: alerts.posts)  # otherwise Alertmanager would drop the alert
        assert alerts.posts[0][0]["labels"] == before["labels"]
        assert alerts.posts[0][0]["startsAt"] == before["startsAt"]
        job.collector = second
        job.all_reported()
        assert wait_for(lambda: second.metric("otel_fr_collector_judgement_duration_seconds_count") >= 2)
        # On a busy machine a late report may change the incident.
        assert {one["id"] for one in second.lines()} <= {opened["id"]}

        job.go_on(waiting)
        closed = second.wait_cause(lambda one: one["state"] == "resolved")
        assert {one["id"] for one in second.lines()} == {closed["id"]} == {opened["id"]}

        def told() -> list[str]:
            return [json.loads(one[3])["change"] for one in hook.requests[posts_before:]]

        assert wait_for(lambda: "resolved" in told())
        # The ranks continue one by one, so the incident may change before it ends.
        assert (told().count("opened"), told().count("resolved")) == (0, 1)
        assert wait_for(lambda: alerts.posts[-1][0]["endsAt"] < before["endsAt"])


def rows(file: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def told_and_noted(data: Path) -> int:
    """Return how many notes of sent messages are on disk. Notes of queued messages have no value."""
    return rows(data / "incidents.db", "notes WHERE value <> ''")


def states_on_disk(data: Path) -> list[str]:
    """Return the states of the incidents that the next collector will know."""
    with contextlib.closing(sqlite3.connect(data / "incidents.db")) as db:
        return [str(state) for (state,) in db.execute("SELECT state FROM incidents")]


def restarted(first: VirtualCollector, folder: Path, job: Job | None = None) -> VirtualCollector:
    """Kill the collector, and return the next one with its data. The job continues with the new collector."""
    first.kill()
    second = VirtualCollector(first.time, data=folder)
    if job is not None:
        job.collector = second
    return second


def test_a_rank_that_reconnects_late_is_not_named_meanwhile(tmp_path: Path) -> None:
    """Rank 2 waits like the other ranks, but its monitor finds the new collector later."""
    with VirtualCollector(data=tmp_path) as first, first.job(3) as job:
        job.hang(1)
        opened = first.wait_cause()
        assert (opened["culprit_ranks"], opened["waiting_ranks"]) == ([1], [0, 2])
        job.ranks[2].silent = True
        with restarted(first, tmp_path, job) as second:
            second.time.advance(20.0)  # longer than a stall and than a silence
            assert second.lines() == []
            job.ranks[2].silent = False
            job.all_reported()
            second.time.advance(20.0)
            assert second.lines() == []
            assert second.metric("otel_fr_collector_judgement_duration_seconds_count") >= 2
            assert [one["culprit_ranks"] for one in second.api("incidents")["incidents"]] == [[1]]


def orphaned(first: VirtualCollector) -> Job:
    """Return a job of four ranks. The last two have fallen silent, and the test kills the collector next."""
    job = first.job(4).__enter__()
    job.step()
    assert first.time.wait_for(lambda: all(rank.number > 5 for rank in job.ranks))
    for rank in (2, 3):
        job.ranks[rank].silent = True
    return job


def test_a_job_without_an_incident_is_not_accused_by_a_new_collector(tmp_path: Path) -> None:
    """Half of the ranks come back late, while the others wait a little longer than usual."""
    with VirtualCollector(data=tmp_path) as first, restarted(first, tmp_path, job := orphaned(first)) as second:
        waiting = [job.ranks[rank].issue(job.world) for rank in (0, 1)]
        second.time.advance(20.0)
        for rank in (2, 3):
            job.ranks[rank].silent = False
        job.go_on(waiting)
        job.all_reported()
        job.step()
        second.time.advance(20.0)
        assert second.lines() == []


def test_a_stop_before_all_ranks_have_reconnected_reports_no_fault(tmp_path: Path) -> None:
    with VirtualCollector(data=tmp_path) as first, restarted(first, tmp_path, job := orphaned(first)) as second:
        for rank in range(4):
            job.ranks[rank].issue(job.world)
        second.time.advance(4.0)  # longer than a stall and than a silence
        second.stop()
        assert second.lines() == []


def test_how_a_rank_died_is_remembered(tmp_path: Path) -> None:
    """The death was reported only once, to the killed collector."""
    with VirtualCollector(data=tmp_path) as first, first.job(3) as job:
        job.hang(1)
        job.ranks[1].exit(signal=9)
        opened = first.wait_cause()
        assert opened["category"] == "rank_dead"
        first.time.advance(2.0)  # the next clean-up keeps the report
        with restarted(first, tmp_path, job) as second:
            second.time.advance(10.0)
            assert second.metric("otel_fr_collector_judgement_duration_seconds_count") >= 3
            assert second.lines() == []
            (kept,) = second.api("incidents")["incidents"]
            assert (kept["id"], kept["category"], kept["state"]) == (opened["id"], "rank_dead", "firing")
            assert "SIGKILL" in str(kept["summary"])


def test_a_fault_that_was_acknowledged_before_the_verdict_is_told_by_the_next_collector(tmp_path: Path) -> None:
    """The ranks have ended, and report the fault only once."""
    with VirtualCollector(data=tmp_path) as first:
        job = orphaned(first)
        for rank in range(3):
            job.ranks[rank].exit(signal=15)
        job.ranks[3].exit(signal=9)
        with restarted(first, tmp_path) as second:
            opened = second.wait_cause()
            assert (opened["category"], opened["culprit_ranks"]) == ("rank_dead", [3])
            second.time.advance(2.0)  # the next clean-up drops the reports
            with restarted(second, tmp_path) as third:
                assert [one["id"] for one in third.api("incidents")["incidents"]] == [opened["id"]]
                third.time.advance(60.0)
                assert [one["state"] for one in third.lines()] == ["resolved"]
    assert not rows(tmp_path / "ends.sqlite3", "request")


def test_an_end_whose_incident_is_over_is_not_told_again(tmp_path: Path) -> None:
    """The collector was killed after it stored the incident as resolved, and before it dropped the report."""
    with VirtualCollector(data=tmp_path) as first, first.job(2) as job:
        job.hang(1)
        job.ranks[1].exit(signal=9)
        first.kill()
    kept = (tmp_path / "ends.sqlite3").read_bytes()
    with VirtualCollector(first.time, data=tmp_path) as second:
        opened = second.wait_cause()
        with second.job(2, attempt=1) as again:
            again.step()
            second.wait_cause(lambda one: one["state"] == "resolved")
    (tmp_path / "ends.sqlite3").write_bytes(kept)
    with VirtualCollector(first.time, data=tmp_path) as third:
        third.time.advance(60.0)
        assert third.lines() == []
        assert states(third) == [(opened["id"], "resolved")]


def test_a_full_disk_costs_no_incident(tmp_path: Path) -> None:
    """With a limit of file sizes the kernel refuses SQLite's writes, as on a full disk."""
    with start(tmp_path, 1, program=IMPATIENT) as first, Job(first, 2) as job:
        job.step()
        unlimited = resource.prlimit(first.process.pid, resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
        waiting = job.skip(1)
        incident = wait_for(lambda: next(iter(first.api("incidents")["incidents"]), None))
        assert incident
        assert wait_for(lambda: "cannot write" in first.err_file.read_text())
        assert wait_for(lambda: first.metric("otel_fr_collector_store_up") == 0)
        resource.prlimit(first.process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert wait_for(lambda: first.metric("otel_fr_collector_store_up") == 1)
        job.go_on(waiting)
        assert wait_for(lambda: states_on_disk(tmp_path / "data") == ["resolved"])
        first.kill()
    with start(tmp_path, 2) as second:
        assert states(second) == [(incident["id"], "resolved")]


def test_a_file_that_can_be_read_only_later_is_loaded_then(tmp_path: Path) -> None:
    with start(tmp_path, 1) as first, Job(first, 2) as job:
        job.hang(1)
        incident = first.wait_cause()
        first.kill()
    holder = sqlite3.connect(tmp_path / "data" / "incidents.db")
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with contextlib.closing(holder), start(tmp_path, 2, program=IMPATIENT) as second:
        assert "cannot write" in second.err_file.read_text()
        assert second.api("incidents")["incidents"] == []
        holder.close()
        assert wait_for(lambda: [one["id"] for one in second.api("incidents")["incidents"]] == [incident["id"]])
        assert second.lines() == []
        assert wait_for(lambda: second.metric("otel_fr_collector_store_up") == 1)


def collector_fails(*options: str) -> str:
    """Return the message of a collector that cannot start."""
    done = otel_fr("collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_data_folder_that_cannot_be_used_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "data"):
        said = collector_fails("--data", str(folder))
        assert f"--data {folder}: {tmp_path / 'file'} is not a folder: name another one" in said
    with start(tmp_path, 1):
        assert "in use by another collector" in collector_fails("--data", str(tmp_path / "data"))
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "incidents.db")) as db:
        db.execute("PRAGMA user_version = 99")
    assert "newer otel-fr" in collector_fails("--data", str(tmp_path / "data"))
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "lock")
    assert "not a regular file" in collector_fails("--data", str(tmp_path / "other"))
