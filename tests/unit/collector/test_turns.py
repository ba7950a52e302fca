"""Tenants have turns: what one of them sends in masses delays another's by a turn, and takes no room from it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from typing import Any

import pytest
from otel_fr_collector import control as control_module
from otel_fr_collector import timeline
from otel_fr_collector import turns as turns_module
from otel_fr_collector.control import Control, TooManyWatchersError, Watcher
from otel_fr_collector.incidents import judge as judge_module
from otel_fr_collector.jobs import groups as groups_module
from otel_fr_collector.jobs import ingest as ingest_module
from otel_fr_collector.jobs import run as run_module
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.otlp.signals import LOGS

from otel_fr.control.v1 import control_pb2
from otel_fr.match import CallState, Group, Signature, compare
from tests.support import floods
from tests.support.in_place import InPlace
from tests.support.services import Clock, new_service
from tests.support.told import apply, group_in, run_in, told_group, wait_alone

SIGNATURE = Signature("all_reduce", ((3,),), ((3,),), ("Float",), ("Float",), "sum")


def runs_of(runs: Runs, tenant: str) -> list[str]:
    return [run.id.job for run in runs.by_tenant.get(tenant, {}).values()]


def known(runs: Runs, job: str, first: float, last: float) -> bool:
    run = runs.get(RunId(job, 0, job), first)
    if run is not None:
        run.last_seen = last
    return run is not None


def test_the_new_runs_of_one_tenant_evict_no_run_of_another() -> None:
    """A tenant's run was evicted if a thousand others began before its next report."""
    runs = Runs(max_runs=10)
    assert known(runs, "b/1", 0.0, 0.0)
    for number in range(50):
        assert known(runs, f"a/{number}", 1.0, 1.0)
    assert runs_of(runs, "b") == ["b/1"]
    assert runs_of(runs, "a") == [f"a/{number}" for number in range(41, 50)]
    assert len(runs.by_id) == runs.usage.runs == 10


def test_a_tenant_with_fewer_runs_gets_room_from_the_one_with_the_most() -> None:
    runs = Runs(max_runs=10)
    for number in range(10):
        assert known(runs, f"a/{number}", 0.0, timeline.ESTABLISHED + number)
    assert not known(runs, "a/x", 20.0, 20.0)
    for number in range(6):
        assert known(runs, f"b/{number}", 20.0, 20.0)
    assert runs_of(runs, "a") == [f"a/{number}" for number in range(5, 10)]
    assert runs_of(runs, "b") == [f"b/{number}" for number in (1, 2, 3, 4, 5)]


def test_one_tenants_thousand_jobs_delay_the_verdict_on_anothers_by_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(judge_module, "TURN_SECONDS", 0.0)
    service = new_service(Clock(2.1))
    for number in range(50):
        wait_alone(run_in(service.runs, job=f"team-a/{number}"))
    wait_alone(run_in(service.runs, job="team-b/1"))
    assert not service.step()
    assert not service.step()
    assert sorted(incident.run.job for incident in service.book.known()) == ["team-a/0", "team-b/1"]
    for _ in range(100):  # every other turn is team-b's
        service.step()
    assert len(service.book.known()) == 51


def test_a_tenant_has_at_most_two_large_runs_judged_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    monkeypatch.setattr(judge_module, "MAX_SIZE_ON_LOOP", 0)
    monkeypatch.setattr(judge_module, "Aside", functools.partial(InPlace, go=go))
    service = new_service(Clock(2.1))

    async def play() -> None:
        for tenant in "abcdefghij":
            for number in range(5):
                wait_alone(run_in(service.runs, job=f"{tenant}/{number}"))
        while not service.judge.step(2.1):
            pass  # on a busy machine, a step is over before all were looked at
        assert len(service.judge._aside) == judge_module.CHILDREN
        running = service.judge._aside_of
        assert max(running.values()) <= 2
        assert len(running) >= judge_module.MANY_CHILDREN
        go.set()
        is_done = False
        while service.judge._aside or not is_done:
            await asyncio.sleep(0.001)
            is_done = service.judge.step(2.1)
        assert not running

    asyncio.run(play())
    assert len(service.book.known()) == 50


def test_pieces_are_compared_a_few_at_a_time_once_the_members_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def counting(*given: Any) -> object:
        compared.append(given)
        return compare(*given)

    monkeypatch.setattr(groups_module, "compare", counting)
    group, size, count = GroupState(Group("g", "0", "", ()), 40), 40, 5

    def gather(rank: int, number: int, length: int = 3) -> RankCall:
        signature = Signature("all_gather", ((length,),), ((3,),) * size, ("Float",), ("Float",))
        return RankCall(rank, number, "g", "collective", number, signature, CallState.COMPLETED)

    for number in range(count):
        for rank in range(size):
            assert not group.add(gather(rank, number, 3 if (rank, number) != (7, 3) else 4))
    assert len(group.incomplete) == len(group.uncompared) == count
    group.learn(Group("g", "0", "", tuple(range(size))), size)
    compared.clear()
    found = []
    while group.uncompared:
        found.append(group.compare_pieces())
        assert len(compared) <= groups_module.MAX_PIECES * (groups_module.MAX_COMPARED + 1)
        compared.clear()
    assert found.count(True) == 1
    assert len(found) > 2
    assert [key[2] for key in group.incomplete] == [3]
    assert group.disagreeing == 1


def test_calls_of_a_group_whose_members_are_not_known_take_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the collector took all of its time, and other groups' calls were not compared."""
    gather = Signature("all_gather", ((3,),), ((3,), (3,)), ("Float",), ("Float",))
    run = run_in(Runs())
    for name, most in (("g", 0), ("h", 2)):
        monkeypatch.setattr(run_module, "MAX_MEMBERS", most)  # no room for the members of the first group
        state = group_in(run, Group(name, name, "", ()))
        state.size = 2
        for rank in range(2):
            state.add(RankCall(rank, 1, name, "collective", 1, gather, CallState.COMPLETED))
        apply(run, 0, most + 1, 1.0, groups=(told_group(Group(name, name, "", (0, 1)), 1, 1),))
    assert list(run.behind) == ["h"]
    while run.compare_pieces():
        pass
    assert [len(run.groups[name].uncompared) for name in "gh"] == [1, 0]


def watch_of(job: str) -> control_pb2.WatchRequest:
    return control_pb2.WatchRequest(job_id=job, run_id=job)


def test_control_streams_of_one_tenant_do_not_shut_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "MAX_WATCHERS", 10)
    control = Control()

    async def commands(watcher: Watcher) -> list[bytes]:
        return [command async for command in watcher]

    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(control.watch(watch_of(f"team-a/{number % 2}"))) for number in range(10)]
        with pytest.raises(TooManyWatchersError):
            stack.enter_context(control.watch(watch_of("team-a/0")))
        stack.enter_context(control.watch(watch_of("team-b/1")))
        assert control.dump(RunId("team-b/1", 0, "team-b/1"), "i", "r") == 1
        assert asyncio.run(commands(watchers[9])) == []  # it was told to connect again
        watchers[8].end()
        assert control.dump(RunId("team-a/0", 0, "team-a/0"), "i", "r") == 5
        assert len(asyncio.run(commands(watchers[8]))) == 0
    assert (control.count, control._by_owner, control._watchers) == (0, {}, {})


def test_no_step_takes_long_in_a_flood_of_dead_jobs() -> None:
    """One step took 2 s of processor time, in which nothing else was answered."""
    clock = Clock()
    service = new_service(clock)

    async def play() -> float:
        slowest = 0.0
        for number in range(8):
            await service.take(LOGS, floods.dead_jobs(number, "team-a/"))
            for _ in range(20):
                clock.advance(0.1)
                began = time.process_time()
                service.step()
                slowest = max(slowest, time.process_time() - began)
        return slowest

    assert asyncio.run(play()) < 1.2
    assert service.book.known()


def test_of_reports_with_many_groups_some_groups_of_one_are_learnt_in_a_turn_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each new group takes 30 µs: 256 reports with 4,096 each, taken at once, delayed all others by seconds."""
    monkeypatch.setattr(turns_module, "SECONDS", -1.0)  # over at once
    service = new_service()
    senders = [floods.Sender(f"team-a/{number}", 0, 2) for number in range(8)]
    groups = [floods.group(f"g{index}", "0-1") for index in range(1_000)]
    reports = [floods.reports([(sender, {"groups": groups})]) for sender in senders]

    async def play() -> list[int]:
        all_done = asyncio.gather(*[service.take(LOGS, report) for report in reports])
        known = [0]
        while not all_done.done():
            await asyncio.sleep(0)
            known.append(service.runs.usage.groups)
        await all_done
        return known

    known = asyncio.run(play())
    assert known[-1] == 8 * 1_000
    assert max(later - before for before, later in itertools.pairwise(known)) <= ingest_module.GROUPS


def test_a_report_whose_run_is_dropped_while_its_groups_are_learnt_is_taken_with_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "SECONDS", -1.0)  # over at once
    service = new_service()
    groups = [floods.group(f"g{index}", "0-1") for index in range(1_000)]
    report = floods.reports([(floods.Sender("team-a/0", 0, 2), {"groups": groups})])

    async def play() -> None:
        taken = asyncio.ensure_future(service.take(LOGS, report))
        while not service.runs.usage.groups:
            await asyncio.sleep(0)
        (run,) = service.runs.by_id.values()
        service.runs._drop(run)
        await taken

    asyncio.run(play())
    assert service.runs.usage.groups == 1_000
