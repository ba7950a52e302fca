"""When something is full, whoever has the most gives way: one tenant's thousand jobs leave room for another's."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector import timeline
from otel_fr_collector.incidents import book as book_module
from otel_fr_collector.incidents import kept as kept_module
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import Access, Tokens, tenant_of
from otel_fr_collector.outlets import alertmanager, delivery
from otel_fr_collector.outlets.alertmanager import Alertmanager
from otel_fr_collector.outlets.delivery import Attempt, DeliveryQueue, Outcome
from otel_fr_collector.outlets.event_stream import (
    MAX_LISTENERS,
    MAX_PENDING_BYTES,
    Event,
    EventStream,
    Listener,
    TooManyListenersError,
)
from otel_fr_collector.shares import FairQueue, Holdings, Owner

from otel_fr.incident import incident_id
from otel_fr.match import Category
from tests.support.incident_data import incident_change
from tests.support.services import value

owners = st.builds(Owner, st.sampled_from("abc"), st.sampled_from("123"))


def test_the_tenant_of_a_job_is_the_longest_prefix_of_a_token_else_the_first_part_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = ["write team-", "write team-b-", "read team-c-", "read,write *"]
    path.write_text("".join(f"{'x' * 15}{number} {line}\n" for number, line in enumerate(lines)))
    tokens = Tokens(path)
    found = {job: tokens.tenant_of(job) for job in ("team-a-1", "team-b-1", "team-c-1", "other/x/1", "job-7")}
    assert list(found.values()) == ["team-", "team-b-", "team-", "other", ""]
    assert tenant_of("/job") == tenant_of("") == ""


@given(st.lists(owners, min_size=1), owners)
def test_who_loses_an_entry_has_more_than_the_newcomer_then_has(held: list[Owner], newcomer: Owner) -> None:
    jobs, tenants = Counter(held), Counter(owner.tenant for owner in held)
    holdings = Holdings()
    for owner, count in jobs.items():
        holdings.add(owner, count)
    loser = holdings.gives_way(newcomer)
    if loser is None:
        assert tenants[newcomer.tenant] + 1 >= max(tenants.values())
        own = [count for owner, count in jobs.items() if owner.tenant == newcomer.tenant]
        assert jobs[newcomer] + 1 >= max(own, default=0)
    elif loser.tenant != newcomer.tenant:
        assert tenants[loser.tenant] == max(tenants.values()) > tenants[newcomer.tenant] + 1
    else:
        assert jobs[loser] > jobs[newcomer] + 1


@given(st.lists(st.tuples(owners, st.sampled_from((-1, 1)), st.booleans()), max_size=60))
def test_who_has_the_most_is_known_whenever_it_is_asked(steps: list[tuple[Owner, int, bool]]) -> None:
    holdings, held, newcomer = Holdings(), Counter[Owner](), Owner("new", "new")
    for owner, more, is_asked in steps:
        if held[owner] + more >= 0:
            holdings.add(owner, more)
            held[owner] += more
        if not is_asked:
            continue
        tenants = Counter[str]()
        for one, count in held.items():
            tenants[one.tenant] += count
        loser, most = holdings.gives_way(newcomer), max(tenants.values(), default=0)
        if most <= 1:
            assert loser is None
        else:
            assert loser is not None
            assert tenants[loser.tenant] == most
            assert held[loser] == max(count for one, count in held.items() if one.tenant == loser.tenant)


@given(st.lists(st.tuples(owners, st.integers(0, 60)), max_size=60))
def test_a_queue_is_bounded_and_in_order_for_each_tenant(steps: list[tuple[Owner, int]]) -> None:
    """A size of 0 stands for taking an item."""
    queue: FairQueue[tuple[int, int]] = FairQueue(5, 100)
    kept: list[tuple[Owner, tuple[int, int]]] = []
    for number, (owner, size) in enumerate(steps):
        if size:
            losers = queue.put((number, size), owner, size, lambda _: False)
            kept.append((owner, (number, size)))
            for loser in losers:
                kept.remove(next(entry for entry in kept if entry[0] == loser))
        elif kept:
            item, taken, _ = queue.take()
            assert (taken, item) == next(entry for entry in kept if entry[0].tenant == taken.tenant)
            kept.remove((taken, item))
        assert len(queue) == len(kept) <= 5
        assert sum(item[1] for _, item in kept) <= 100


def test_tenants_are_served_in_turn_and_a_failed_one_comes_last() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for text in ("a1", "a2", "b1", "a3", "c1"):
        queue.put(text, Owner(text[0], text[0]), 1, lambda _: False)
    queue.put_back(*queue.take())
    assert [queue.take()[0] for _ in range(len(queue))] == ["b1", "c1", "a1", "a2", "a3"]


def test_a_delivery_that_fails_lets_the_other_jobs_of_its_tenant_pass_and_stays_the_first_of_its_own() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for text in ("a1", "a2", "b1", "a3", "b2"):
        queue.put(text, Owner("team", text[0]), 1, lambda _: False)
    queue.put_back(*queue.take())
    assert [queue.take()[0] for _ in range(len(queue))] == ["b1", "b2", "a1", "a2", "a3"]


def test_a_newer_delivery_replaces_the_waiting_ones_of_its_own_job_only() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for owner in (Owner("a", "1"), Owner("a", "2")):
        queue.put("old", owner, 1, lambda _: True)
    queue.put("new", Owner("a", "1"), 1, lambda _: True)
    assert sorted(queue.take()[0] for _ in range(len(queue))) == ["new", "old"]


def test_the_large_deliveries_of_one_tenant_leave_room_for_the_small_ones_of_another() -> None:
    queue: FairQueue[str] = FairQueue(1_000, 100)
    for number in range(5):
        queue.put(f"a{number}", Owner("a", f"{number}"), 40, lambda _: False)
        queue.put(f"b{number}", Owner("b", "1"), 1, lambda _: False)
    assert sorted(queue.take()[0] for _ in range(len(queue))) == ["a0", "a1", "b0", "b1", "b2", "b3", "b4"]
    assert queue.put("c", Owner("c", "c"), 101, lambda _: False) == [Owner("c", "c")]
    assert not len(queue)


def test_the_alert_of_another_tenant_is_sent_when_one_has_filled_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alertmanager, "MAX_ALERTS", 10)
    outlet = Alertmanager(["http://127.0.0.1:9"], metrics := Metrics())
    for number in range(12):
        outlet.publish(incident_change(f"team-a/{number}", str(number)))
    assert value(metrics, "otel_fr_collector_alerts_dropped_total") == 2
    outlet.publish(incident_change("team-b/1", "b"))
    held = [dict(alert.labels)["job_id"] for alert in outlet._held()]
    assert held == [*(f"team-a/{number}" for number in range(9)), "team-b/1"]
    assert value(metrics, "otel_fr_collector_alerts_dropped_total") == 3
    assert caplog.text.count("limit of 10 alerts reached: dropping an alert of job 'team-a/10'") == 1
    # Room again: what was left out is sent with its next change, and an alert that ended holds none of it for long.
    outlet.publish(incident_change("team-a/0", "0", ChangeKind.RESOLVED))
    outlet._delivered("http://127.0.0.1:9/api/v2/alerts", [alert for alert in outlet._held() if alert.ended])
    outlet.publish(incident_change("team-a/11", "11", ChangeKind.UPDATED))
    assert "team-a/11" in [dict(alert.labels)["job_id"] for alert in outlet._held()]


def test_a_replica_that_is_down_does_not_hold_ended_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = Alertmanager(["http://127.0.0.1:9", "http://127.0.0.1:10"], metrics := Metrics())
    outlet.publish(incident_change())
    outlet.publish(incident_change(kind=ChangeKind.RESOLVED))
    assert len(outlet._held()) == 1
    monkeypatch.setattr(timeline, "ALERT_HOLD", -1.0)
    monkeypatch.setattr(alertmanager, "MAX_ALERTS", 1)
    outlet.publish(incident_change("other", "1"))
    assert [dict(alert.labels)["job_id"] for alert in outlet._held()] == ["other"]
    assert value(metrics, "otel_fr_collector_alerts_dropped_total") == 0


def test_the_alert_of_an_incident_that_still_needs_something_lasts_until_people_are_told() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    for category, least in (("missing_rank", 0.0), ("size_mismatch", timeline.TOLD_SECONDS)):
        outlet.publish(incident_change(category, category, category=Category(category)))
        change = incident_change(category, category, ChangeKind.RESOLVED, category=Category(category))
        outlet.publish(change)
        (alert,) = [one for one in outlet._held() if dict(one.labels)["job_id"] == category]
        assert alert.ended == pytest.approx(change.incident.detected + least, abs=1.0)
        assert ("what_to_do" in alert.annotations) is bool(least)


def test_deliveries_about_one_tenant_do_not_push_out_those_about_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "MAX_QUEUED", 10)
    metrics = Metrics()
    queue: DeliveryQueue[str] = DeliveryQueue("webhook h", lambda _: Attempt(Outcome.SENT), metrics)
    queue.put("b", Owner("b", "b/1"), 1, lambda _: False)
    for number in range(30):
        queue.put(str(number), Owner("a", f"a/{number % 15}"), 1, lambda _: False)
    assert len(queue._queue) == 10
    assert value(metrics, "otel_fr_collector_deliveries_total", outlet="webhook h", outcome="dropped") == 21
    assert "b" in [queue._queue.take()[0] for _ in range(10)]
    assert caplog.text.count("webhook h: the queue is full; dropping a delivery: of job 'a/") == 1


def test_listeners_of_one_access_do_not_shut_out_those_of_another() -> None:
    stream = EventStream()
    many, few = Access(True, False, "team-a/"), Access(True, False, "team-b/")
    listeners = [stream.join(many) for _ in range(MAX_LISTENERS)]
    with pytest.raises(TooManyListenersError):
        stream.join(many)
    stream.join(few)
    assert stream.accesses() == {many, few}
    assert asyncio.run(listeners[-1].next()) is None  # it is told to connect again
    assert listeners[0].put(Event("jobs", "{}"))


def found(
    book: IncidentBook, job: str, *keys: str, run_id: str = "", now: float = 0.0
) -> tuple[Run, list[IncidentChange]]:
    """A run of the job, whose ranks have died; one finding for each key."""
    run = Run(RunId(job, 0, run_id or f"run-{job}"), 0.0, 0.0)
    findings = [replace(incident_change().incident.finding, key=key, sequence_id=n) for n, key in enumerate(keys)]
    changes = book.update(run, findings, now=now, wall=1.0, enqueued={}, over=())
    return run, changes


def test_the_incident_of_another_tenant_opens_when_one_has_filled_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (book_module, kept_module):
        monkeypatch.setattr(module, "MAX_INCIDENTS", 10)
    book = IncidentBook(lambda: 2.0)
    for number in range(10):
        found(book, f"team-a/{number}", "k")
    run, changes = found(book, "team-a/x", "k")
    assert not changes
    assert run.usage.refused["incidents"] == 1
    run, changes = found(book, "team-b/1", "k")
    told = [(change.kind, change.incident.run.job) for change in changes]
    assert told == [(ChangeKind.RESOLVED, "team-a/9"), (ChangeKind.OPENED, "team-b/1")]
    assert len(book.known()) == len(book.open_data()) == 10
    _, changes = found(book, "team-a/9", "k")
    assert not changes  # the two do not take turns
    assert caplog.text.count("limit of 10 firing incidents reached: dropping an incident of job 'team-a/x'") == 1


@pytest.mark.parametrize("tenant", ["", "same/"])
def test_among_jobs_with_one_incident_each_the_longest_told_gives_way_to_a_new_one_once(
    monkeypatch: pytest.MonkeyPatch, tenant: str
) -> None:
    for module in (book_module, kept_module):
        monkeypatch.setattr(module, "MAX_INCIDENTS", 10)
    book = IncidentBook(lambda: 2.0)
    for number in range(10):
        found(book, f"{tenant}{number}", "k", now=float(number))
    assert not found(book, f"{tenant}new", "k", now=timeline.TOLD_SECONDS - 1)[1], "nobody may have seen the others"
    now = timeline.TOLD_SECONDS + 1

    def told(job: str, *keys: str) -> list[tuple[ChangeKind, str]]:
        changes = found(book, tenant + job, *keys, now=now)[1]
        return [(change.kind, change.incident.run.job.removeprefix(tenant)) for change in changes]

    assert told("new", "k") == [(ChangeKind.RESOLVED, "0"), (ChangeKind.OPENED, "new")]
    assert not told("0", "k"), "the two do not take turns"
    assert not [change for change in told("new", "k", "another") if change[0] is not ChangeKind.UPDATED]


def test_two_jobs_that_send_one_run_id_have_incidents_of_their_own() -> None:
    """An incident id is a hash of run id and fault, and a run id is what the ranks say: others' can be copied."""
    book = IncidentBook(lambda: 2.0)
    victim, opened = found(book, "team-a/1", "k", "l", run_id="0123")
    thief, copied = found(book, "team-b/1", "k", "l", run_id="0123")
    numbers = [change.incident.id for change in opened + copied]
    assert len(set(numbers)) == 4
    assert numbers[0] == incident_id("0123", "k")
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    for change in opened + copied:
        outlet.publish(change)
    for change in book.resolve_run(thief.id, 0.0):
        outlet.publish(change)
    firing = [dict(alert.labels)["job_id"] for alert in outlet._held() if alert.ended is None]
    assert firing == ["team-a/1"]
    assert [change.incident.id for change in book.resolve_run(victim.id, 0.0)] == numbers[:2]


def test_the_events_of_one_listener_are_bounded_in_size() -> None:
    listener = Listener(Access(True, False))
    half = Event("jobs", "x" * (MAX_PENDING_BYTES // 2 + 1))
    assert listener.put(half)
    assert not listener.put(half)
    assert asyncio.run(listener.next()) == half
    assert listener.put(Event("jobs", half.data * 4))  # alone it may be of any size


def test_the_texts_of_all_incidents_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand incidents could hold 5 MB of stacks, call sites and values."""
    monkeypatch.setattr(kept_module, "MAX_BYTES", 4 << 20)
    book = IncidentBook(lambda: 2.0)
    finding = incident_change().incident.finding
    finding = replace(finding, key="k", culprit_ranks=(0,), stacks={0: "x" * 100_000}, call_sites={0: "y" * 2_000})
    held = []
    for number in range(200):
        run = Run(RunId(f"job-{number}", 0, f"run-{number}"), 0.0, 0.0)
        book.update(run, [finding], now=0.0, wall=1.0, enqueued={}, over=())
        if number >= 100:
            book.resolve_run(run.id, 1.0)
        held.append(sum(len(one.finding.stacks.get(0, "")) for one in book.known()))
    assert held[0] == 100_000
    assert max(held) < 4 << 20
    assert len(book.open_data()) == 100
    assert all(one.finding.summary for one in book.known())
    assert book._bytes == sum(one.size for one in book.known()) < 5 << 20
    assert book._open_bytes == sum(one.size for one in book.known() if one.is_open)
