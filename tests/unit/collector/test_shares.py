"""When something is full, whoever has the most gives way: one tenant's thousand jobs leave room for another's."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

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
from otel_fr_collector.outlets import outbox
from otel_fr_collector.outlets.alertmanager import Alert, Alertmanager
from otel_fr_collector.outlets.event_stream import (
    MAX_LISTENERS,
    MAX_PENDING_BYTES,
    Event,
    EventStream,
    Listener,
    TooManyListenersError,
)
from otel_fr_collector.outlets.outbox import Attempt, Message, Outbox, Outcome
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.outlets.terminal import Terminal
from otel_fr_collector.shares import FairQueue, Holdings, Owner

from otel_fr.identity import incident_id
from otel_fr.match import Category
from tests.support.incident_data import incident_change
from tests.support.services import value
from tests.support.waiting import PATIENCE

T = TypeVar("T")
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


class Item(NamedTuple):
    """What waits; ``text`` begins with the job's name."""

    text: str
    owner: Owner
    size: int = 1


def items(tenant: str, *texts: str) -> list[Item]:
    return [Item(text, Owner(tenant or text[0], text[0])) for text in texts]


def taken(queue: FairQueue[Item]) -> list[str]:
    """All that is in the queue."""
    return [queue.take().text for _ in range(len(queue))]


@given(st.lists(st.builds(Item, st.uuids().map(str), owners, st.integers(0, 60)), max_size=60))
def test_a_queue_is_bounded_and_in_order_for_each_tenant(steps: list[Item]) -> None:
    """A size of 0 stands for taking an item."""
    queue: FairQueue[Item] = FairQueue(5, 100)
    kept: list[Item] = []
    for item in steps:
        if item.size:
            losers = queue.put(item)
            kept.append(item)
            for loser in losers:
                kept.remove(next(one for one in kept if one.owner == loser))
        elif kept:
            first = queue.take()
            assert first == next(one for one in kept if one.owner.tenant == first.owner.tenant)
            kept.remove(first)
        assert len(queue) == len(kept) <= 5
        assert sum(one.size for one in kept) <= 100


def test_tenants_are_served_in_turn_and_a_failed_one_comes_last() -> None:
    queue: FairQueue[Item] = FairQueue(10, 10)
    for item in items("", "a1", "a2", "b1", "a3", "c1"):
        queue.put(item)
    queue.put_back(queue.take())
    assert taken(queue) == ["b1", "c1", "a1", "a2", "a3"]


def test_what_fails_lets_the_other_jobs_of_its_tenant_pass_and_stays_the_first_of_its_own() -> None:
    queue: FairQueue[Item] = FairQueue(10, 10)
    for item in items("team", "a1", "a2", "b1", "a3", "b2"):
        queue.put(item)
    queue.put_back(queue.take())
    assert taken(queue) == ["b1", "b2", "a1", "a2", "a3"]


def test_the_large_items_of_one_tenant_leave_room_for_the_small_ones_of_another() -> None:
    queue: FairQueue[Item] = FairQueue(1_000, 100)
    for number in range(5):
        queue.put(Item(f"a{number}", Owner("a", f"{number}"), 40))
        queue.put(Item(f"b{number}", Owner("b", "1")))
    assert sorted(taken(queue)) == ["a0", "a1", "b0", "b1", "b2", "b3", "b4"]
    assert queue.put(Item("c", Owner("c", "c"), 101)) == [Owner("c", "c")]
    assert not len(queue)


def message(text: str, owner: Owner, *, is_state: bool = False) -> Message[str]:
    return Message(text[0], owner, text, 1, is_state)


def waiting(box: Outbox[T]) -> list[Message[T]]:
    """Take all that waits."""
    return [box._queue.take() for _ in range(len(box._queue))]


def outbox_of(metrics: Metrics, send: Callable[[str], Outcome] = lambda _: Outcome.SENT) -> Outbox[str]:
    return Outbox("webhook h", lambda messages: Attempt(send(messages[0].content)), metrics)


def test_messages_about_one_tenant_do_not_push_out_those_about_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUED", 10)
    box = outbox_of(metrics := Metrics())
    box.put(message("b", Owner("b", "b/1")))
    for number in range(30):
        box.put(message(str(number), Owner("a", f"a/{number % 15}")))
    assert len(box._queue) == 10
    assert value(metrics, "otel_fr_collector_deliveries_total", outlet="webhook h", outcome="dropped") == 21
    assert "b" in [one.content for one in waiting(box)]
    assert caplog.text.count("webhook h: the queue is full; dropping a delivery: of job 'a/") == 1


def test_a_later_message_takes_the_place_of_a_waiting_state_of_its_own_job_only() -> None:
    box = outbox_of(Metrics())
    one_job, other_job = Owner("a", "1"), Owner("a", "2")
    for owner in (one_job, other_job):
        box.put(message("x is new", owner))
        box.put(message("x has changed", owner, is_state=True))
    box.put(message("y is new", one_job, is_state=True))
    box.put(message("x is over", one_job))
    left = waiting(box)
    assert [one.content for one in left if one.owner == one_job] == ["x is new", "y is new", "x is over"]
    assert [one.content for one in left if one.owner == other_job] == ["x is new", "x has changed"]


@pytest.mark.parametrize("is_newer", [True, False])
def test_a_state_that_fails_while_a_later_one_comes_or_it_is_withdrawn_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, *, is_newer: bool
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.0)
    owner, told = Owner("a", "1"), list[str]()
    is_asked, may_answer = threading.Event(), threading.Event()

    def send(text: str) -> Outcome:
        told.append(text)
        is_asked.set()
        assert may_answer.wait(PATIENCE)
        return Outcome.FAILED if len(told) == 1 else Outcome.SENT

    async def play() -> None:
        box = outbox_of(Metrics(), send)
        box.start()
        box.put(message("x fires", owner, is_state=True))
        await asyncio.to_thread(is_asked.wait, PATIENCE)
        if is_newer:
            box.put(message("x is over", owner, is_state=True))
        else:
            box.withdraw(owner, "x")
        box.put(message("y fires", owner))
        may_answer.set()
        while "y fires" not in told:
            await asyncio.sleep(0.001)
        await box.stop(PATIENCE)

    asyncio.run(asyncio.wait_for(play(), PATIENCE))
    assert told == ["x fires", *(["x is over"] if is_newer else []), "y fires"]


def told(outlet: Alertmanager) -> list[Alert]:
    """Take all alerts that wait to be posted."""
    (box,) = outlet._outboxes
    return [one.content for one in waiting(box)]


def test_an_alert_that_ends_is_posted_as_ended_and_held_no_more() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    outlet.publish(incident_change())
    outlet.publish(incident_change(kind=ChangeKind.RESOLVED))
    assert not outlet._firing
    (alert,) = told(outlet)
    assert alert.ended is not None


def test_an_alert_of_two_incidents_describes_the_one_that_goes_on() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    outlet.publish(incident_change(number="stays", summary="rank 1 is slow"))
    outlet.publish(incident_change(number="ends", summary="rank 2 is slow"))
    outlet.publish(incident_change(number="ends", kind=ChangeKind.RESOLVED))
    (alert,) = told(outlet)
    assert (alert.ended, alert.annotations["incident_id"]) == (None, "stays")


def test_an_alert_that_another_collector_continues_is_posted_no_more() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    mine, others = incident_change("mine"), incident_change("others")
    for change in (mine, others):
        outlet.publish(change)
    outlet.forget(others.incident.run)
    assert [dict(alert.labels)["job_id"] for alert in told(outlet)] == ["mine"]
    outlet.publish(incident_change("others", kind=ChangeKind.RESOLVED))
    assert told(outlet) == []


def test_an_incident_that_another_collector_continues_is_not_printed() -> None:
    printed = io.StringIO()
    outlets = Outlets(Metrics(), Terminal(printed))
    mine, others = incident_change("mine", "1"), incident_change("others", "2")
    for change in (mine, others):
        outlets.publish(change, 0.0, has_files=False)
    outlets.forget(others.incident.run)
    outlets.step(0.0, IncidentBook(), final=True)
    assert "mine" in printed.getvalue()
    assert "others" not in printed.getvalue()


def test_the_alert_of_an_incident_that_still_needs_something_lasts_until_people_are_told() -> None:
    outlet = Alertmanager(["http://127.0.0.1:9"], Metrics())
    for category, least in (("missing_rank", 0.0), ("size_mismatch", timeline.TOLD_SECONDS)):
        outlet.publish(incident_change(category, category, category=Category(category)))
        change = incident_change(category, category, ChangeKind.RESOLVED, category=Category(category))
        outlet.publish(change)
        (alert,) = told(outlet)
        assert alert.ended == pytest.approx(change.incident.detected + least, abs=1.0)
        assert ("what_to_do" in alert.annotations) is bool(least)


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
    firing = [dict(labels)["job_id"] for labels in outlet._firing]
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
