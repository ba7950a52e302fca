"""Two real collectors that share a real PostgreSQL database. Each incident is told once, whichever collector dies."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
from otel_fr_collector.storage.postgres_sharing import ORPHANED_AFTER

from tests.support.collector_process import STORED_FIRST, Collector, patched, running
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.played_job import Job
from tests.support.postgres import PostgresServer
from tests.support.relay import Relay
from tests.support.tokens import Player
from tests.support.waiting import wait_for

PROGRAM = patched(
    storage__persistence__SHARE_SECONDS=0.2,
    storage__postgres_backend__RETRY=0.2,
    storage__postgres_connection__ANSWER_SECONDS=3.0,
    web__finished__SHOW_SECONDS=0.5,
    **STORED_FIRST,
)
"""Collectors with short times: they soon see each other's data, and soon notice that the database is away."""


class Site:
    """Collectors with one database, and their receivers."""

    def __init__(self, folder: Path, url: str, stack: contextlib.ExitStack) -> None:
        self._folder, self._url, self._stack = folder, url, stack
        self.alerts, self.hook = AlertSink(), Receiver()
        stack.callback(self.alerts.close)
        stack.callback(self.hook.close)

    def start(self, *options: str, ports: Sequence[int | None] = (None, None)) -> list[Collector]:
        """Start a collector for each of ``ports``, all at once. It uses this port for the database; None: the usual."""

        def run(number: int) -> contextlib.AbstractContextManager[Collector]:
            url = self._url if ports[number] is None else re.sub(r":\d+/", f":{ports[number]}/", self._url)
            given = ["--store", url, "--data", str(self._folder / f"data-{number}")]
            given += ["--external-url", f"http://collector-{number}.example"]
            given += ["--alertmanager", self.alerts.url, "--webhook", self.hook.url + "/in", *options]
            context = running(self._folder / f"collector-{number}", *given, program=PROGRAM)
            collectors[number] = context.__enter__()
            return context

        collectors: dict[int, Collector] = {}
        with ThreadPoolExecutor(len(ports)) as pool:
            for context in pool.map(run, range(len(ports))):
                self._stack.push(context)
        return [collectors[number] for number in sorted(collectors)]

    def posted(self, change: str) -> list[str]:
        """Return the incident ids of posted changes. Posts with a known webhook id are dropped, as receivers must.

        A collector repeats a post if it was killed between the post and the note of it.
        """
        posts = {headers["webhook-id"]: json.loads(body) for _, _, headers, body in list(self.hook.requests)}
        return [one["incident"]["id"] for one in posts.values() if one["change"] == change]

    def pass_away(self) -> None:
        """Let time pass in the database until a collector counts as gone, because it has not marked its incidents."""
        with psycopg.connect(self._url) as db:
            db.execute(f"UPDATE otel_fr.incidents SET kept = kept - interval '{ORPHANED_AFTER}'")

    def openings(self) -> list[str]:
        return self.posted("opened")


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path, postgres.new_database(), stack)


class All:
    """Sends each request to several collectors, as in a wrongly configured network."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = collectors

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return [one.send(method, data, **options) for one in self._collectors][-1]


def listed(collector: Collector, **query: str) -> list[tuple[str, str]]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    found = collector.api(f"incidents?{text}")["incidents"]
    return [(one["id"], one["state"]) for one in found]


def jobs(collector: Collector) -> dict[str, dict[str, Any]]:
    return {one["job"]: one for one in collector.api("jobs")["jobs"]}


def judges(collector: Collector) -> bool:
    return collector.metric("otel_fr_collector_judgement_duration_seconds_count") >= 1


def test_an_incident_goes_on_in_another_collector_when_its_own_is_killed(site: Site) -> None:
    first, second = site.start()
    with Job(first, 3) as job:
        waiting = job.hang(1)
        opened = first.wait_cause()
        assert wait_for(lambda: site.openings() and site.alerts.posts)
        fired = site.alerts.posts[-1][0]
        first.kill()
        site.alerts.posts.clear()
        job.collector = second
        assert wait_for(lambda: judges(second))
        assert wait_for(lambda: site.alerts.posts)
        assert site.alerts.posts[0][0]["labels"] == fired["labels"]
        assert site.alerts.posts[0][0]["startsAt"] == fired["startsAt"]
        assert listed(second) == [(opened["id"], "firing")]
        job.go_on(waiting)
        closed = second.wait_cause(lambda one: one["state"] == "resolved")
        assert closed["id"] == opened["id"]
        assert wait_for(lambda: site.posted("resolved"))
        assert site.openings() == [opened["id"]]
        assert site.posted("resolved") == [opened["id"]]
        assert wait_for(lambda: site.alerts.posts[-1][0]["endsAt"] < fired["endsAt"])
        assert [one["state"] for one in second.lines() if one["caused_by"] is None][-1:] == ["resolved"]


def test_a_fault_that_shows_after_its_collector_was_killed_is_found_by_another(site: Site) -> None:
    first, second = site.start()
    with Job(first, 3) as job:
        job.step()
        assert wait_for(lambda: "job-7" in jobs(second)), "the first has told of it"
        first.kill()
        job.collector = second
        job.skip(1)
        opened = second.wait_cause()
        assert (opened["culprit_ranks"], opened["waiting_ranks"]) == ([1], [0, 2])
        assert wait_for(site.openings)
        assert site.openings() == [opened["id"]]


@pytest.mark.parametrize("is_killed", [False, True])
def test_of_a_job_that_two_collectors_hear_nothing_is_lost_or_told_twice(site: Site, is_killed: bool) -> None:
    first, second = site.start()
    with Job(All(first, second), 3) as job:
        waiting = job.hang(1)
        opened = first.wait_cause()
        assert second.wait_cause()["id"] == opened["id"]
        job.all_reported()
        assert wait_for(lambda: listed(first) == listed(second) == [(opened["id"], "firing")])
        assert wait_for(lambda: site.openings() and site.alerts.posts)
        if is_killed:
            first.kill()
            job.collector = second
        job.go_on(waiting)
        assert second.wait_cause(lambda one: one["state"] == "resolved")
        assert wait_for(lambda: listed(second) == [(opened["id"], "resolved")])
        assert wait_for(lambda: site.posted("resolved"))
    second.stop()
    assert site.openings() == [opened["id"]]
    assert site.posted("resolved") == [opened["id"]]
    numbers = [headers["webhook-id"] for _, _, headers, _ in site.hook.requests]
    assert is_killed or len(numbers) == len(set(numbers)), "no post is doubled"
    alerts = {tuple(sorted(one["labels"].items())) for post in site.alerts.posts for one in post}
    assert len(alerts) == 1


def test_a_job_that_moves_takes_its_incident_along(site: Site) -> None:
    """As after a new collector behind a load balancer. The old collector is well, and resolves nothing."""
    first, second = site.start()
    with Job(first, 3) as job:
        waiting = job.hang(1)
        opened = first.wait_cause()
        job.collector = second
        assert wait_for(lambda: judges(second))
        assert wait_for(lambda: first.api("jobs")["jobs"][0]["collector_page"] is not None)
        job.go_on(waiting)
        closed = second.wait_cause(lambda one: one["state"] == "resolved")
        assert closed["id"] == opened["id"]
        assert [one["state"] for one in first.lines()].count("resolved") == 0
        assert wait_for(lambda: listed(first) == [(opened["id"], "resolved")])
        assert wait_for(site.openings)
        assert site.openings() == [opened["id"]]


@pytest.mark.long
def test_the_incident_of_a_job_that_ended_with_its_collector_is_resolved_by_another(site: Site) -> None:
    """Nobody hears of the job any more. Its next attempt reports to the other collector."""
    first, second = site.start()
    with Job(first, 2) as job:
        job.hang(1)
        opened = first.wait_cause()
        assert wait_for(lambda: site.alerts.posts)
        first.kill()
    site.pass_away()
    site.alerts.posts.clear()
    assert wait_for(lambda: site.alerts.posts), "the alert would end else, and the fault has not"
    assert listed(second) == [(opened["id"], "firing")]
    with Job(second, 2, attempt=1) as again:
        again.step()
        closed = second.wait_cause(lambda one: one["state"] == "resolved")
    assert closed["id"] == opened["id"]
    assert site.openings() == [opened["id"]]


@pytest.mark.long
def test_a_collector_that_was_cut_off_from_the_database_keeps_its_job_and_what_it_found(
    site: Site, postgres: PostgresServer
) -> None:
    """The job always reports to this collector. The other collector takes the incident, as after a death."""
    with Relay("127.0.0.1", postgres.port) as relay:
        first, second = site.start(ports=(relay.port, None))
        with Job(first, 3) as job:
            waiting = job.hang(1)
            opened = first.wait_cause()
            assert wait_for(site.openings)
            relay.stop()
            site.pass_away()
            assert wait_for(lambda: second.metric("otel_fr_incidents_open", category="missing_rank") == 1)
            job.go_on(waiting)
            first.wait_cause(lambda one: one["state"] == "resolved")
            assert wait_for(lambda: site.posted("resolved"))
            assert listed(second) == [(opened["id"], "firing")]
            relay.go_on()
            assert wait_for(lambda: listed(second) == [(opened["id"], "resolved")])
            assert wait_for(lambda: second.metric("otel_fr_incidents_open", category="missing_rank") == 0)
            assert site.openings() == [opened["id"]]
            assert site.posted("resolved") == [opened["id"]]
            assert second.lines() == []


def test_each_collector_knows_what_follows_from_an_incident_of_another(site: Site) -> None:
    """Rank 2 is missing in a group with ranks 0 and 1. Therefore rank 0 is missing in a group with rank 3."""
    first, second = site.start()
    with Job(first, 4) as job:
        trio, pair = job.group("1", [0, 1, 2], "trio"), job.group("2", [0, 3], "pair")
        job.skip(2, trio)
        job.ranks[3].issue(pair)
        assert wait_for(lambda: len(first.incidents()) == 2)
        cause, consequence = sorted(first.incidents(), key=lambda one: one["caused_by"] is not None)
        for one in (first, second):
            found = one.api(f"incidents/{cause['id']}")
            assert found["consequences"] == [consequence["id"]]
            assert len(listed(one)) == 1
            assert len(listed(one, include="consequences")) == 2


def test_each_collector_shows_the_jobs_and_incidents_of_all_to_those_who_may_see_them(
    site: Site, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    write, all_jobs, own = "w" * 20, "a" * 20, "o" * 20
    tokens.write_text(f"{write} write *\n{all_jobs} read *\n{own} read team-a/\n")
    options = ("--tokens", str(tokens))
    first, second = site.start(*options)

    def read(collector: Collector, path: str, token: str) -> Any:
        answer = collector.fetch(path, Authorization=f"Bearer {token}")
        return json.loads(answer.body) if answer.status == 200 else answer.status

    events = Request(second.http + "/api/v1/events", headers={"Authorization": f"Bearer {own}"})
    with (
        urlopen(events, timeout=100) as stream,
        Job(Player(first, write), 2, "team-a/train") as one,
        Job(Player(first, write), 2, "team-b/train") as other,
    ):
        for job in (other, one):
            job.hang(1)
        a, b = sorted(first.wait_causes(2), key=lambda item: str(item["job"]))
        assert wait_for(lambda: len(read(second, "/api/v1/incidents", all_jobs)["incidents"]) == 2)
        assert [found["id"] for found in read(second, "/api/v1/incidents", own)["incidents"]] == [a["id"]]
        assert read(second, f"/api/v1/incidents/{b['id']}", own) == 404
        assert read(second, f"/api/v1/incidents/{b['id']}", all_jobs)["summary"] == b["summary"]
        assert wait_for(lambda: len(read(second, "/api/v1/jobs", all_jobs)["jobs"]) == 2)
        page = "http://collector-0.example"
        (seen,) = wait_for(lambda: [job for job in read(second, "/api/v1/jobs", own)["jobs"] if job["incidents"]])
        assert (seen["job"], seen["incidents"], seen["collector_page"]) == ("team-a/train", [a["id"]], page)
        assert read(second, f"/api/v1/jobs/{seen['id']}", own)["world_size"] == 2
        hidden = next(job for job in read(second, "/api/v1/jobs", all_jobs)["jobs"] if job["job"] == "team-b/train")
        assert read(second, f"/api/v1/jobs/{hidden['id']}", own) == 404
        assert read(first, "/api/v1/jobs", all_jobs)["jobs"][0]["collector_page"] is None
        text = ""
        while '"change"' not in text:  # the stream is open until the test ends
            text = stream.readline().decode()
        shown = json.loads(text.removeprefix("data: "))
        # The second collector polls. On a busy machine the incident may change before the next poll.
        change = "opened" if shown["incident"]["revision"] == 1 else "updated"
        assert (shown["change"], shown["incident"]["id"]) == (change, a["id"])
