"""Webhooks, checked by the Standard Webhooks project's own library, and Grafana's annotations."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets import outbox, webhook
from otel_fr_collector.outlets.changes import Changes
from otel_fr_collector.outlets.grafana import Grafana
from otel_fr_collector.outlets.outlet import Outlet
from otel_fr_collector.outlets.webhook import sign
from otel_fr_collector.storage.store import Store
from standardwebhooks import Webhook

from otel_fr.incident import unix
from tests.support.collector_process import running
from tests.support.incident_receivers import FakeGrafana, Receiver
from tests.support.paths import DOCS
from tests.support.played_job import Job
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The example from Standard Webhooks."""
HERE = "webhook 127.0.0.1"
"""The outlet name of all receivers of these tests."""


@pytest.fixture
def hook() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    fake = FakeGrafana()
    yield fake
    fake.close()


def test_every_change_is_posted_in_order_and_signed(tmp_path: Path, hook: Receiver) -> None:
    url = hook.url.replace("://", "://me:a%2Fb@") + "/in?team=a"
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    options = ["--webhook", url, "--webhook-secret-file", str(secret)]
    options += ["--external-url", "https://fr.example/", "--link", "runbook=https://wiki/{category}?job={job}"]
    with running(tmp_path, *options) as collector, Job(collector, 2, job_id="job & <b>") as job:
        waiting = job.hang(1)
        incident = collector.wait_cause()
        job.ranks[1].send_report("torch.flight_recorder.written", file="/dumps/rank_1")
        assert wait_for(lambda: len(hook.requests) >= 2)
        job.go_on(waiting)
        assert wait_for(lambda: b'"resolved"' in hook.requests[-1][3])
    bodies = []
    for method, path, headers, body in hook.requests:
        assert (method, path, headers["Content-Type"]) == ("POST", "/in?team=a", "application/json")
        assert {k.lower(): v for k, v in headers.items()}["authorization"] == "Basic bWU6YS9i"  # me:a/b
        bodies.append(Webhook(SECRET).verify(body.decode(), {k.lower(): v for k, v in headers.items()}))
    changes = [body["change"] for body in bodies]
    assert (changes[0], changes[-1], set(changes[1:-1])) == ("opened", "resolved", {"updated"})
    revisions = [body["incident"]["revision"] for body in bodies]
    assert revisions == sorted(set(revisions))
    assert bodies[0]["incident"]["culprit_ranks"] == [1]
    assert bodies[0]["links"] == {
        "page": f"https://fr.example/#/incidents/{incident['id']}",
        "runbook": "https://wiki/missing_rank?job=job%20%26%20%3Cb%3E",
    }
    assert len({headers["webhook-id"] for _, _, headers, _ in hook.requests}) == len(bodies)


def test_the_snippet_of_the_documentation_verifies_a_post(tmp_path: Path) -> None:
    text = (DOCS / "guide" / "alerts.md").read_text()
    snippet = text.split("```python\n")[1].split("```")[0]
    body, moment = b'{"version": 1}', str(int(time.time()))
    signature = sign(b"a secret of mine", "msg-1", int(moment), body)
    check = (
        f"{snippet}\nheaders = {{'webhook-id': 'msg-1', 'webhook-timestamp': {moment!r},"
        f" 'webhook-signature': {signature!r}}}\n"
        f"assert verify(b'a secret of mine', headers, {body!r})\n"
        f"assert not verify(b'a secret of mine', headers, {body + b' '!r})\n"
        f"assert not verify(b'another secret..', headers, {body!r})\n"
        "headers['webhook-timestamp'] = '1000000000'\n"
        f"assert not verify(b'a secret of mine', headers, {body!r})\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=PATIENCE)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed deliveries be retried soon."""
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.05)


def to(*hooks: Receiver) -> Callable[[Metrics, Store | None], list[Outlet]]:
    """Return a function that makes outlets for these receivers."""
    return lambda metrics, store: [Changes(webhook.Webhook(hook.url), metrics, store=store) for hook in hooks]


@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_is_down_gets_its_posts_when_it_is_back_and_delays_nothing(hook: Receiver) -> None:
    hook.status = 503
    quick = Receiver()
    with contextlib.closing(quick), VirtualCollector(outlets=to(hook, quick)) as collector:
        with collector.job(2) as job:
            waiting = job.hang(1)
            collector.wait_cause()
            collector.deliver(lambda: quick.requests)
            job.go_on(waiting)
            collector.deliver(lambda: len(quick.requests) == 2)
            collector.deliver(lambda: hook.requests)
            hook.status = 200
            collector.deliver(lambda: b'"resolved"' in hook.requests[-1][3])
        collector.deliver(lambda: collector.deliveries(HERE) == 4)
    ids = [headers["webhook-id"] for _, _, headers, _ in hook.requests]
    assert len(set(ids)) == 2  # a retry has the first attempt's id


@pytest.mark.usefixtures("impatient")
def test_updates_that_wait_are_replaced_by_newer_ones(hook: Receiver) -> None:
    """A job of thousands of ranks names thousands of files, each a change. A receiver that was down needs the last."""
    hook.status = 503
    with VirtualCollector(outlets=to(hook)) as collector, collector.job(4) as job:
        waiting = job.hang(1)
        number = collector.wait_cause()["id"]
        files: list[str] = []
        for rank in job.ranks:
            files.append(str(rank.rank))
            rank.send_report("torch.flight_recorder.written", file=f"/dumps/rank_{rank.rank}")
            collector.wait_cause(lambda one: one["flight_recorder_files"].keys() >= set(files))
        published = len(collector.lines())
        job.go_on(waiting)
        collector.wait_cause(lambda one: one["state"] == "resolved")
        assert published >= 5
        collector.deliver(lambda: hook.requests)
        before = len(hook.requests)
        hook.status = 200
        collector.deliver(lambda: b'"resolved"' in hook.requests[-1][3])
        taken = [json.loads(body) for _, _, _, body in hook.requests[before:]]
    changes = list({body["incident"]["revision"]: body["change"] for body in taken}.values())
    assert changes == ["opened", "resolved"]
    assert len(taken[-1]["incident"]["flight_recorder_files"]) == 4
    assert taken[-1]["incident"]["id"] == number


def test_a_post_that_was_never_accepted_is_sent_after_a_restart(tmp_path: Path, hook: Receiver) -> None:
    hook.status = 500
    with VirtualCollector(data=tmp_path, outlets=to(hook)) as first, first.job(2) as job:
        job.hang(1)
        incident = first.wait_cause()
        first.deliver(lambda: hook.requests)
    hook.status = 200
    before = len(hook.requests)
    with VirtualCollector(first.time, data=tmp_path, outlets=to(hook)) as second:
        second.deliver(lambda: len(hook.requests) > before)
        body = json.loads(hook.requests[before][3])
        assert (body["change"], body["incident"]["id"]) == ("opened", incident["id"])


def test_over_a_restart_what_is_over_is_told_to_whom_it_was_queued_for_and_once(tmp_path: Path, hook: Receiver) -> None:
    """A receiver that has never accepted anything still gets the end. A new receiver gets no ended incident."""
    hook.status = 500
    accepts, new = Receiver(), Receiver()
    with contextlib.closing(accepts), contextlib.closing(new):
        with VirtualCollector(data=tmp_path, outlets=to(hook, accepts)) as first, first.job(2) as job:
            waiting = job.hang(1)
            incident = first.wait_cause()
            first.deliver(lambda: hook.requests)
            job.go_on(waiting)
            first.deliver(lambda: first.deliveries(HERE) == 2)
        hook.status = 200
        with VirtualCollector(first.time, data=tmp_path, outlets=to(hook, accepts, new)) as second:
            second.deliver(lambda: second.deliveries(HERE) == 1)
            before = len(hook.requests)  # may include the first collector's last attempt
            body = json.loads(hook.requests[-1][3])
            assert (body["change"], body["incident"]["id"]) == ("resolved", incident["id"])
        with VirtualCollector(second.time, data=tmp_path, outlets=to(hook, accepts, new)) as third, third.job(2) as job:
            job.hang(1)
            counts = [before + 1, 3, 1]
            told = (hook, accepts, new)
            third.deliver(lambda: all(len(one.requests) >= count for one, count in zip(told, counts, strict=True)))
            assert [len(one.requests) for one in told] == counts
            assert {json.loads(one.requests[-1][3])["change"] for one in told} == {"opened"}


class Hesitant(Receiver):
    """Keeps posts at once, but answers only when it is ``released``."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        self.released.wait(PATIENCE)
        return super().reply(method, path, headers, body)


def test_a_post_before_whose_answer_the_collector_was_killed_is_recognised_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the incident has changed meanwhile: the "opened" message keeps its id."""
    monkeypatch.setattr(outbox, "TOTAL_SECONDS", PATIENCE)  # so that the first collector does not retry
    hook = Hesitant()
    with contextlib.closing(hook):
        with VirtualCollector(data=tmp_path, outlets=to(hook)) as first, first.job(2) as job:
            job.hang(1)
            first.wait_cause()
            first.deliver(lambda: hook.requests)
            job.ranks[1].send_report("torch.flight_recorder.written", file="/dumps/rank_1")
            assert first.wait_cause(lambda one: one["revision"] > 1)
        hook.released.set()
        with VirtualCollector(first.time, data=tmp_path, outlets=to(hook)) as second:
            second.deliver(lambda: b'"updated"' in hook.requests[-1][3])
    found = [(json.loads(body)["change"], headers) for _, _, headers, body in hook.requests]
    assert [change for change, _ in found] == ["opened", "opened", "updated"]
    for name in ("webhook-id", "Idempotency-Key"):
        ids = [headers[name] for _, headers in found]
        assert ids[0] == ids[1] != ids[2]


def marking(grafana: FakeGrafana, links: Links | None = None) -> Callable[[Metrics, Store | None], list[Outlet]]:
    return lambda metrics, store: [Changes(Grafana(grafana.url, FakeGrafana.TOKEN), metrics, links=links, store=store)]


def test_an_incident_is_a_mark_in_grafana_and_a_region_once_it_is_over(grafana: FakeGrafana) -> None:
    links = Links(trace="http://jaeger:16686/trace/{trace_id}")
    with (
        VirtualCollector(outlets=marking(grafana, links)) as collector,
        collector.job(2, job_id="<script>alert(1)</script>") as job,
    ):
        waiting = job.hang(1)
        incident = collector.wait_cause()
        collector.deliver(lambda: grafana.marks.get(1))
        mark = dict(grafana.marks[1])
        assert mark["tags"] == ["otel-fr", "missing_rank", f"job:{job.id}", f"incident:{incident['id']}"]
        assert "rank 1 (node-0) did not join" in mark["text"]
        assert "<script>" not in mark["text"]
        assert f'<a href="http://jaeger:16686/trace/{incident["trace_id"]}">trace</a>' in mark["text"]
        assert abs(mark["time"] - 1000 * (unix(incident["started_at"]) or 0.0)) <= 1
        assert "timeEnd" not in mark
        job.go_on(waiting)
        collector.deliver(lambda: grafana.marks[1].get("timeEnd", 0) > mark["time"])
        assert len(grafana.marks) == 1


def mark_and_restart(folder: Path, grafana: FakeGrafana, between: Callable[[], None] = lambda: None) -> None:
    """Let the collector make a mark, kill it, and continue the job with the next collector."""
    with VirtualCollector(data=folder, outlets=marking(grafana)) as first, first.job(2) as job:
        waiting = job.hang(1)
        first.wait_cause()
        first.deliver(lambda: grafana.marks)
        first.kill()
        between()
        with VirtualCollector(first.time, data=folder, outlets=marking(grafana)) as second:
            job.collector = second
            job.all_reported()
            job.go_on(waiting)
            second.wait_cause(lambda one: one["state"] == "resolved")
            second.deliver(lambda: "timeEnd" in grafana.marks[1])


@pytest.mark.usefixtures("impatient")
def test_a_mark_is_made_once_over_a_lost_answer_and_a_restart(tmp_path: Path, grafana: FakeGrafana) -> None:
    grafana.lose_answers = 1
    mark_and_restart(tmp_path, grafana)
    assert len(grafana.marks) == 1


def test_a_damaged_note_of_a_mark_does_not_keep_the_collector_from_starting(
    tmp_path: Path, grafana: FakeGrafana
) -> None:
    """The collector finds the mark again by its tags."""

    def damage() -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "incidents.db")) as db, db:
            db.execute("UPDATE notes SET value = '{'")

    mark_and_restart(tmp_path, grafana, damage)


def test_an_incident_that_was_over_before_grafana_could_be_told_is_a_region_after_a_restart(
    tmp_path: Path, grafana: FakeGrafana
) -> None:
    with VirtualCollector(data=tmp_path, outlets=marking(grafana)) as first:
        with first.job(2, job_id="told") as job:
            job.hang(1)
            first.deliver(lambda: grafana.marks)
        grafana.status = 503
        with first.job(2, job_id="untold") as job:
            waiting = job.hang(1)
            first.wait_cause(lambda one: one["job"] == "untold")
            job.go_on(waiting)
            first.wait_cause(lambda one: (one["job"], one["state"]) == ("untold", "resolved"))
    grafana.status = 200
    with VirtualCollector(first.time, data=tmp_path, outlets=marking(grafana)) as second:
        second.deliver(lambda: [mark["tags"][2] for mark in grafana.marks.values()] == ["job:told", "job:untold"])
        assert "timeEnd" in grafana.marks[2]


def test_grafana_that_refuses_is_logged_and_costs_no_incident(
    grafana: FakeGrafana, caplog: pytest.LogCaptureFixture
) -> None:
    grafana.status = 401
    with VirtualCollector(outlets=marking(grafana)) as collector, collector.job(2) as job:
        job.hang(1)
        assert collector.wait_cause()
        collector.deliver(lambda: "status 401" in caplog.text)
        assert collector.deliveries("grafana 127.0.0.1", "rejected") >= 1


def test_quiet_logs_one_line_for_each_change(tmp_path: Path) -> None:
    with running(tmp_path, "--quiet") as collector, Job(collector, 2, job_id="my job") as job:
        waiting = job.hang(1)
        collector.wait_cause()
        job.go_on(waiting)
        assert wait_for(lambda: "change=resolved" in collector.err_file.read_text())
        lines = [line for line in collector.err_file.read_text().splitlines() if "change=" in line]
        assert 'change=opened category=missing_rank job="my job"' in lines[0]
        assert "culprits=1" in lines[0]
        assert collector.out_file.read_text() == ""
