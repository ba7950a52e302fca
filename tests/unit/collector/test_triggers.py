"""When the collector waits for more before it judges a run, and when it checks whether to judge it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector import timeline
from otel_fr_collector.incidents import judge as judge_module
from otel_fr_collector.incidents import triggers
from otel_fr_collector.incidents.triggers import Judging, Waits, look_at_waits
from otel_fr_collector.jobs import stops
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import reported_calls

from otel_fr.match import WAIT_SHARE, CallState, Ending, Group
from otel_fr.rank_report import RankReport, ReportedActivity
from tests.support.evidence import SUM
from tests.support.services import Clock, new_service, value
from tests.support.told import apply, new_run, run_in, wait_alone

GROUP = Group("g", "0", "default_pg", ())
NOW = 100.0


@pytest.mark.parametrize(("by_monitor", "was_stopped"), [(True, True), (False, False)])
def test_a_rank_that_its_monitor_killed_was_stopped(by_monitor: bool, was_stopped: bool) -> None:
    """As for the match engine: its launcher ends the others after it, one by one."""
    report = RankReport(1, 7, (), on_hang="kill" if by_monitor else "")
    assert stops.may_follow_a_stop(RankState(1, report, ending=Ending.KILLED, signal=9)) is was_stopped


def waits(rank: int, record: int, since: float | None, state: CallState = CallState.IN_FLIGHT) -> RankCall:
    return RankCall(rank, record, "g", "collective", record, SUM, state, enqueued_at=since)


def longest(run: Run, now: float) -> float | None:
    """By how much the longest wait of a rank that says so has passed its threshold, found the plain way."""
    found = []
    for state in run.ranks.values():
        if state.report is None or state.ended is not None or state.is_silent(now, *run.unheard(now)):
            continue
        threshold = WAIT_SHARE * state.report.stall_s
        begun = [call.enqueued_at for call in reported_calls(run, state) if call.enqueued_at is not None]
        found += [now - at - threshold for at in begun if state.sent >= at + threshold - timeline.FRESH_BEFORE]
    return max((over for over in found if over >= 0.0), default=None)


SINCE = st.none() | st.floats(NOW - 8.0, NOW + 1.0)
RANKS = st.lists(
    st.tuples(
        st.sampled_from([2.0, 5.0]),
        st.floats(NOW - 4.0, NOW) | st.just(NOW),
        st.lists(SINCE, max_size=3),
        st.sampled_from(["", "ended", "overdue", "completed"]),
    ),
    max_size=6,
)


@given(RANKS)
def test_a_look_finds_the_longest_wait_and_when_the_next_one_is_long(
    ranks: list[tuple[float, float, list[float | None], str]],
) -> None:
    run = new_run()
    run.group_state(GROUP, 2)
    for rank, (stall, arrived, sinces, more) in enumerate(ranks):
        calls = [waits(rank, number, since) for number, since in enumerate(sinces, 1)]
        overdue = (ReportedActivity("heartbeat", "", 9.0, 1.0, True),) if more == "overdue" else ()
        apply(run, rank, 1, arrived, stall_s=stall, inflight=calls, activity=overdue)
        if more == "ended":
            run.ranks[rank].ended = arrived
        if more == "completed" and calls:
            run.groups["g"].add(calls[0]._replace(state=CallState.COMPLETED))
    found = look_at_waits(run, NOW)
    assert found.over == pytest.approx(longest(run, NOW))
    assert found.is_overdue == any(more == "overdue" for *_, more in ranks)
    assert found.next_at > NOW
    if found.over is None:
        assert longest(run, min(found.next_at, NOW + 9.0) - 1e-6) is None


def test_a_call_of_which_nothing_was_heard_since_it_began_is_no_wait() -> None:
    """Ranks of a large job report each 5 s, so for most calls that a report shows in flight the end is not heard in
    time. A run is not judged for that: each time, thousands of ranks would seem to wait for each other."""
    run = new_run()
    run.group_state(GROUP, 2)
    apply(run, 0, 1, 95.0, inflight=[waits(0, 1, 94.996)], interval_s=5.0)
    assert look_at_waits(run, 99.9).over is None
    apply(run, 0, 2, 99.9, inflight=[waits(0, 1, 94.996)], interval_s=0.25)
    assert look_at_waits(run, 99.9).over == pytest.approx(99.9 - 94.996 - WAIT_SHARE * 5.0)


def test_nothing_is_to_be_expected_where_no_rank_waits() -> None:
    run = new_run()
    apply(run, 0, 1, NOW)
    assert look_at_waits(run, NOW) == Waits(None, math.inf, is_overdue=False)


def test_a_wait_is_seen_as_soon_as_it_is_long_although_looking_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at all ranks of a large job takes long, so it is not done each time; then an incident came later."""
    monkeypatch.setattr(judge_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(judge_module, "LOOK_PAUSE", 1e9)
    monkeypatch.setattr(judge_module, "LEAST_LOOK_PAUSE", 0.0)
    clock = Clock(0.0)
    service = new_service(clock)
    run = run_in(service.runs)
    wait_alone(run, stall=5.0)
    clock.now = 2.0
    service.step()
    assert [service.judge.is_due_soon(at) for at in (2.0, 2.8, 2.9, 4.0)] == [False, False, True, True]
    looks: list[float] = []

    def look(of: Run, at: float) -> Waits:
        looks.append(at)
        return look_at_waits(of, at)

    monkeypatch.setattr(triggers, "look_at_waits", look)
    for tenth in range(20, 60):
        clock.now = tenth / 10
        if tenth == 42:
            apply(run, 0, 3, clock.now, inflight=[waits(0, 1, 0.0)])
        service.step()
    assert looks == [4.4]
    assert not service.judge.is_due_soon(clock.now)
    judged = value(service.metrics, "otel_fr_collector_judgement_duration_seconds_count")
    assert judged == 1, "it was judged when the wait was long, and not before"


@pytest.mark.parametrize(("wall", "cpu", "pause"), [(4.0, 0.5, 2.0), (4.0, 3.0, 3.0)])
def test_a_judgement_that_waited_for_the_processor_delays_the_next_one_less(
    wall: float, cpu: float, pause: float
) -> None:
    judging = Judging()
    judging.note_verdict(100.0, [], seconds=wall, cpu=cpu)
    assert (judging.judged_at, judging.pause) == (100.0, pause)
