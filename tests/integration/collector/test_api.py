"""The JSON API and the live stream: answers about real reports, which stay cheap and bounded."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.network.tokens import EVERYTHING
from otel_fr_collector.outlets import event_stream as stream_module
from otel_fr_collector.outlets.event_stream import Event, EventStream
from otel_fr_collector.web.job_views import job_key

from tests.support.collector_process import Collector
from tests.support.collector_view import CollectorView
from tests.support.played_job import Job
from tests.support.staged_collector import Stage
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for


def refused(url: str) -> tuple[int, str]:
    with pytest.raises(HTTPError) as problem:
        urlopen(url, timeout=PATIENCE)
    return problem.value.code, json.load(problem.value)["error"]


def job_of(collector: CollectorView, job: Job, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the job's detail once ``check`` holds for it."""

    def look() -> dict[str, Any] | None:
        known = next((one for one in collector.api("jobs")["jobs"] if one["run_id"] == job.run), None)
        whole = collector.api(f"jobs/{known['id']}") if known else None
        return whole if whole and check(whole) else None

    found = collector.time.wait_for(look)
    assert found is not None, collector.api("jobs")
    return found


def test_a_job_shows_who_is_behind_who_waits_and_who_has_ended(collector: VirtualCollector) -> None:
    with collector.job(4, "job/1 ü") as job:
        pairs = [job.group("a", [0, 1], "tp"), job.group("b", [2, 3], "tp")]
        for group in (job.world, job.world, *pairs):
            job.step(group)
        job.skip(2)
        job.ranks[3].exit(signal=9)
        incident = collector.wait_cause()
        found = job_of(collector, job, lambda one: one["state"] == "incident")
    assert (found["job"], found["attempt"], found["world_size"], found["service"]) == ("job/1 ü", 0, 4, "trainer")
    assert incident["id"] in found["incidents"]
    ranks = found["ranks"]
    assert ranks["rank"] == [0, 1, 2, 3]
    assert ranks["state"] == ["running", "running", "running", "killed"]
    assert ranks["tally"] == {"running": 3, "killed": 1}
    assert ranks["how"][3] == "signal 9 (SIGKILL)"
    assert ranks["host"] == ["node-0"] * 4
    groups = {group["name"]: group for group in found["groups"]}
    world = groups["0"]
    assert (world["ranks"], world["enqueued"], world["completed"]) == ("0-3", [2, 3], [2, 2])
    assert (world["behind"], world["behind_count"]) == ("2", 1)
    operation, number, group, seconds = ranks["waits"][0]
    assert (operation, number, found["groups"][group]["name"]) == ("all_reduce", 3, "0")
    assert seconds > 0
    assert ranks["waits"][2] is None
    lanes = {lane["name"]: lane for lane in found["lanes"]}
    assert set(lanes) == {"default_pg", "tp"}  # the two pairs have no common rank, so they share a column
    assert lanes["default_pg"]["enqueued"] == [3, 3, 2, 3]
    assert [found["groups"][index]["name"] for index in lanes["tp"]["group"]] == ["a", "a", "b", "b"]


def test_unheard_ranks_are_shown_as_unheard(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.ranks[2].silent = True
        job.step(job.group("pair", [0, 1]))
        states = ["running", "running", "unheard"]
        found = job_of(collector, job, lambda one: one["ranks"]["state"] == states)
    assert [lane["group"][2] for lane in found["lanes"]] == [None]


@pytest.mark.parametrize("kept", [True, False], ids=["stored", "in memory"])
def test_incidents_are_chosen_by_state_job_and_time(tmp_path: Path, *, kept: bool) -> None:
    with VirtualCollector(data=tmp_path if kept else None) as collector:
        times: list[str] = []
        for name in ("a", "b & c"):
            with collector.job(2, name) as job:
                waiting = job.hang(1)
                times.append(collector.wait_causes(len(times) + 1)[-1]["detected_at"])
                if name == "a":
                    job.go_on(waiting)
                    collector.wait_cause(lambda one: one["state"] == "resolved")

        def jobs(query: str) -> list[str]:
            return [one["job"] for one in collector.api(f"incidents?{query}")["incidents"]]

        assert jobs("") == ["a", "b & c"]
        assert jobs("state=firing") == ["b & c"]
        assert jobs("state=resolved") == ["a"]
        assert jobs("job=" + quote("b & c")) == ["b & c"]
        assert jobs("job=") == []
        assert jobs("limit=1") == ["b & c"]
        assert jobs("before=" + quote(times[1])) == ["a"]
        assert jobs("before=" + quote(times[0])) == []
        brief = collector.api("incidents?view=brief&limit=1")["incidents"][0]
        assert not {"stacks", "waiting_ranks"} & set(brief)
        assert "ranks" not in brief["process_group"]
        whole = collector.api(f"incidents/{brief['id']}")
        assert (whole["stacks"], whole["consequences"]) == ({}, [])
        assert collector.api(whole["job_url"].removeprefix("/api/v1/"))["job"] == "b & c"


DIGITS = "9" * 5_000
"""Python refuses to parse a number with so many digits."""
WRONG = [
    "state=open", "include=all", "view=whole", "limit=0", "limit=x", "limit=", "limit=1_0", "limit=+1", "limit=%D9%A1",
    f"limit={DIGITS}", f"limit=-{DIGITS}", f"limit=1e{DIGITS}", "before=yesterday", "before=%00", f"before={DIGITS}",
    f"before={DIGITS}-01-01",
]  # fmt: skip


def test_a_question_that_makes_no_sense_is_refused_with_its_parameter(collector: VirtualCollector) -> None:
    for wrong in WRONG:
        answer = collector.fetch(f"/api/v1/incidents?{wrong}")
        assert answer.status == 400
        assert wrong.split("=")[0] in json.loads(answer.body)["error"]
    refused = json.loads(collector.fetch("/api/v1/incidents?state=open").body)["error"]
    assert set(re.findall(r"\w+", refused)) >= {"firing", "resolved"}  # the valid values
    for path in ("v1/incidents/none", "v1/jobs/none"):
        assert collector.fetch(f"/api/{path}").status == 404
    answer = collector.fetch("/api/v1/none")
    assert (answer.status, json.loads(answer.body)) == (404, {"error": "Not Found"})


def events(url: str, found: list[tuple[str, Any]], opened: threading.Event) -> None:
    """Read the stream into a list until it ends."""
    name = ""
    with urlopen(url + "/api/v1/events", timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer:
            text = line.decode().rstrip("\r\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                found.append((name, json.loads(text.removeprefix("data: "))))
                opened.set()


def test_the_stream_reports_jobs_and_each_change_and_ends_with_the_collector(process: Collector) -> None:
    found: list[tuple[str, Any]] = []
    opened = threading.Event()
    reader = threading.Thread(target=events, args=(process.http, found, opened), daemon=True)
    reader.start()
    assert opened.wait(PATIENCE)
    assert found[0] == ("jobs", {"jobs": []})
    with Job(process, 2) as job:
        waiting = job.hang(1)
        assert wait_for(lambda: [data["change"] for name, data in found if name == "incident"][:1] == ["opened"])
        job.go_on(waiting)
        assert wait_for(lambda: [data["change"] for name, data in found if name == "incident"][-1] == "resolved")
        assert wait_for(
            lambda: any(data["jobs"] and data["jobs"][0]["job"] == job.id for n, data in found if n == "jobs")
        )
    assert process.stop() == 0
    reader.join(PATIENCE)
    assert not reader.is_alive()


def test_a_listener_that_does_not_read_is_let_go_and_the_others_are_not() -> None:
    async def play() -> None:
        stream = EventStream()
        slow, quick = stream.join(EVERYTHING), stream.join(EVERYTHING)
        for number in range(stream_module.MAX_PENDING + 1):
            stream.jobs(str(number), EVERYTHING)
            assert await quick.next() == Event("jobs", str(number))
        read = [await slow.next() for _ in range(stream_module.MAX_PENDING)]
        assert read[-1] is None  # the end, so that the client connects again
        stream.close()
        assert await quick.next() is None
        assert await stream.join(EVERYTHING).next() is None

    asyncio.run(play())


def test_listeners_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_LISTENERS", 2)
    with (
        urlopen(stage.url + "/api/v1/events", timeout=PATIENCE) as one,
        urlopen(stage.url + "/api/v1/events", timeout=PATIENCE) as two,
    ):
        assert one.readline()
        assert two.readline()
        assert refused(stage.url + "/api/v1/events")[0] == 503
    assert wait_for(lambda: not stage.service.outlets.event_stream.accesses())  # clients that leave make room


@pytest.mark.parametrize("kept", [True, False], ids=["stored", "in memory"])
def test_a_list_has_causes_with_the_number_of_their_consequences(tmp_path: Path, *, kept: bool) -> None:
    """Rank 2 is missing in a group with ranks 0 and 1. Therefore rank 0 is missing in a group with rank 3."""
    with VirtualCollector(data=tmp_path if kept else None) as collector, collector.job(4) as job:
        trio, pair = job.group("1", [0, 1, 2], "trio"), job.group("2", [0, 3], "pair")
        job.skip(2, trio)
        job.ranks[3].issue(pair)
        assert collector.time.wait_for(lambda: len(collector.incidents()) == 2)
        cause, consequence = sorted(collector.incidents(), key=lambda one: one["caused_by"] is not None)
        assert consequence["caused_by"] == cause["id"]
        for view in ("", "view=brief&"):
            (listed,) = collector.api(f"incidents?{view}state=firing")["incidents"]
            assert (listed["id"], listed["consequence_count"]) == (cause["id"], 1)
            every = collector.api(f"incidents?{view}include=consequences")["incidents"]
            assert {one["id"]: one["consequence_count"] for one in every} == {cause["id"]: 1, consequence["id"]: 0}
        assert collector.api(f"incidents/{cause['id']}")["consequences"] == [consequence["id"]]
        assert listed["places"] == {str(rank): cause["places"][str(rank)] for rank in cause["culprit_ranks"]}


def test_a_list_that_would_be_too_large_leaves_out_the_oldest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from otel_fr_collector.web import incident_lists

    numbers = [stage.hang(stage.job(64, f"job-{n}"), 1)["id"] for n in range(6)]
    monkeypatch.setattr(incident_lists, "MAX_BYTES", 10_000)
    with urlopen(f"{stage.url}/api/v1/incidents", timeout=PATIENCE) as answer:
        body = answer.read()
    found = [one["id"] for one in json.loads(body)["incidents"]]
    assert len(body) < 10_100
    assert 1 < len(found) < 6
    assert found == numbers[-len(found) :]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),  # a program
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://a-proxy-that-rewrites-host"}, 404),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        # Over plain HTTP to another machine, browsers send no Sec-Fetch-Site.
        ({"Host": "collector:8080", "Origin": "http://collector:8080"}, 404),
        ({"Host": "10.0.0.1", "X-Forwarded-Host": "collector:8080", "Origin": "http://collector:8080"}, 404),
        ({"Host": "collector:8080", "Origin": "http://elsewhere:8080"}, 403),
        ({"Host": "collector:8080", "Origin": "null"}, 403),
    ],
)
def test_a_page_of_another_site_may_only_read(stage: Stage, headers: dict[str, str], status: int) -> None:
    with pytest.raises(HTTPError) as refused, urlopen(Request(f"{stage.url}/api/v1/jobs/none/stacks", b"", headers)):
        pass
    assert refused.value.code == status
    with urlopen(Request(f"{stage.url}/api/v1/jobs", headers=headers)) as answer:
        assert answer.status == 200


def test_a_jobs_name_in_addresses_is_its_own(stage: Stage) -> None:
    """Also if job, attempt and run could be confused."""
    runs = [RunId("a", 1, "b"), RunId("a", 11, "b"), RunId("a1", 1, "b"), RunId("a", 1, "1b"), RunId("ü/..", 0, "")]
    keys = {job_key(run) for run in runs}
    assert len(keys) == len(runs)
    assert all(key.isalnum() and key.isascii() for key in keys)
