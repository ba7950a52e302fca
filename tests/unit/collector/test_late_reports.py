"""A collector that is behind names nobody whose reports wait in its queue, and takes no old report for a new one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.lateness import Delay, Lags
from otel_fr_collector.otlp.signals import LOGS
from otel_fr_collector.receive.intake import PARALLEL_REPORTS, Intake

from otel_fr.match import CallState, Group
from otel_fr.rank_report import RankReport, build
from tests.support.evidence import SUM
from tests.support.otlp_messages import logs_request, rank_resource, report_record
from tests.support.services import Clock, new_service
from tests.support.told import told, told_group

WORLD, CULPRIT = 4, 2
EVERYONE = list(range(WORLD))
GROUP = Group("g", "0", "default_pg", tuple(EVERYONE))
STUCK_AT = 8.0
"""When the first rank enqueues the collective that the culprit leaves out."""
TICK = 0.1
Phases = list[tuple[float, float]]
"""From `STUCK_AT` on: for so many seconds, the collector reads so many seconds of what was sent in each second."""


@dataclass
class Queue:
    """What was sent up to ``front`` has been read; the collector's event loop runs meanwhile."""

    phases: Phases
    front: float = 0.0

    def advance(self, now: float) -> None:
        speed, left = 20.0, now - STUCK_AT
        for seconds, slow in self.phases:
            if 0 <= left < seconds:
                speed = slow
                break
            left -= seconds
        self.front = min(now, self.front + speed * TICK)


@dataclass
class Outcome:
    """Culprits of causes at any time; ``named_at``: when the true one first was alone."""

    culprits: set[tuple[int, ...]] = field(default_factory=set)
    named_at: float | None = None

    def note(self, ranks: tuple[int, ...], now: float) -> None:
        self.culprits.add(ranks)
        if ranks == (CULPRIT,) and self.named_at is None:
            self.named_at = now


def report(
    rank: int,
    number: int,
    now: float,
    begun: float | None,
    clock: float,
    done: float | None = None,
    world: int = WORLD,
) -> bytes:
    """Rank's report at ``now``; ``begun``: when it enqueued the collective; ``done``: when that ended."""
    has_joined = begun is not None and begun <= now
    is_done = done is not None and done <= now
    moved = STUCK_AT - 1.0 if begun is None or begun > now else done if done is not None and is_done else begun
    call = RankCall(rank, 6, GROUP.id, "collective", 6, SUM, CallState.IN_FLIGHT, enqueued_at=moved)
    given = RankReport(
        rank,
        number,
        groups=(told_group(GROUP, 5 + has_joined, 5 + is_done),),
        in_flight=(told(call, now),) if has_joined and not is_done else (),
        idle_s=max(0.0, now - moved),
    )
    return logs_request((rank_resource(rank, world), report_record(build(given), at=clock + now)))


async def play(
    phases: Phases,
    late: list[float],
    clock: Callable[[int, float], float],
    *,
    is_lost: bool,
    seconds: float,
    is_healthy: bool = False,
) -> Outcome:
    """A job in which one rank leaves a collective out, and a collector that falls behind.

    Args:
        is_healthy: all ranks join.
        late: by rank, seconds after `STUCK_AT` at which it enqueues that collective.
        clock: what a rank's own clock shows, less the time.
        is_lost: the culprit's machine is lost at `STUCK_AT`: nothing is heard of it any more.
    """
    outcome, queue, at = Outcome(), Queue(phases), Clock(1.0)
    service = new_service(at)
    sent: list[tuple[float, int, bytes]] = []
    numbers = [0] * WORLD
    while (now := at.now) < seconds:
        for rank in EVERYONE:
            if now >= numbers[rank] + rank * 0.22 and not (is_lost and rank == CULPRIT and now >= STUCK_AT):
                numbers[rank] += 1
                begun = None if rank == CULPRIT and not is_healthy else STUCK_AT + late[rank]
                done = STUCK_AT + max(late) + 0.05 if is_healthy else None
                sent.append((now, rank, report(rank, numbers[rank], now, begun, clock(rank, now), done)))
        queue.advance(now)
        while sent and sent[0][0] <= queue.front:
            await service.take(LOGS, sent.pop(0)[2])
        service.step()
        (run,) = service.runs.by_id
        for incident in service.book.open_of(run):
            if incident.cause is None:
                outcome.note(incident.finding.culprit_ranks, now)
        at.advance(TICK)
    return outcome


speeds = st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.7, 1.0, 3.0])
behind = st.lists(st.tuples(st.floats(0.5, 9.0), speeds), min_size=1, max_size=4)
lateness = st.lists(st.floats(0.0, 3.0), min_size=WORLD, max_size=WORLD).map(lambda given: [0.0, *given[1:]])
wall_clocks = st.lists(st.floats(1e9, 2e9), min_size=WORLD, max_size=WORLD)


@settings(max_examples=25)
@given(behind, lateness, wall_clocks, st.booleans())
@example([(8.0, 0.2)], [0.0, 3.0, 0.0, 3.0], [1.7e9] * WORLD, False)
@example([(4.0, 0.05), (6.0, 0.4), (9.0, 0.0)], [0.0, 2.0, 0.0, 3.0], [1.7e9] * WORLD, True)
@example([(3.1, 1.0), (5.03, 0.05), (1.97, 0.7), (4.19, 3.0)], [0.0, 2.97, 0.5, 0.26], [1.7e9] * WORLD, False)
@example([(6.66, 0.4), (6.37, 0.0)], [0.0, 0.34, 1.1, 2.82], [1.7e9] * WORLD, True)
def test_nobody_innocent_is_named_whose_reports_wait_in_the_queue(
    phases: Phases, late: list[float], clocks: list[float], is_lost: bool
) -> None:
    outcome = asyncio.run(play(phases, late, lambda rank, _: clocks[rank], is_lost=is_lost, seconds=STUCK_AT + 60.0))
    assert outcome.culprits == {(CULPRIT,)}


@settings(max_examples=25)
@given(behind, lateness, st.integers(0, WORLD - 1), st.floats(-4.0, 4.0))
@example([(8.0, 0.2)], [0.0, 3.0, 0.0, 3.0], 0, -0.95)
def test_a_healthy_job_raises_nothing_whatever_is_late_and_whosever_clock_is_set(
    phases: Phases, late: list[float], rank: int, step: float
) -> None:
    """Ranks wait for 3 s at most, and the clock of one is set while they do."""

    def clock(of: int, now: float) -> float:
        return 1.7e9 + (step if of == rank and now > STUCK_AT + 1.0 else 0.0)

    outcome = asyncio.run(play(phases, late, clock, is_lost=False, seconds=STUCK_AT + 50.0, is_healthy=True))
    assert outcome.culprits == set()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    "clock",
    [
        pytest.param(lambda *_: 1.7e9, id="right"),
        pytest.param(lambda rank, now: 1.7e9 - 3600 * (rank == 1 and now > STUCK_AT + 3), id="set back"),
        pytest.param(lambda rank, now: 1.7e9 + 3600 * (rank == 1 and now > STUCK_AT + 3), id="set forward"),
        pytest.param(lambda rank, now: 1.7e9 + 0.0005 * now * rank, id="too fast"),
        pytest.param(lambda *_: -1e12, id="made up"),
    ],
)
def test_a_collector_that_is_not_behind_names_the_rank_no_later(
    clock: Callable[[int, float], float], is_lost: bool
) -> None:
    outcome = asyncio.run(play([], [0.0] * WORLD, clock, is_lost=is_lost, seconds=STUCK_AT + 10.0))
    assert outcome.culprits == {(CULPRIT,)}
    assert outcome.named_at is not None
    assert outcome.named_at - STUCK_AT < 5.5


def test_reports_with_made_up_times_delay_the_verdict_on_their_own_run_for_a_while_only() -> None:
    made_up = [1e9, 1e9 - 900.0, 1e9 + 500.0, 1e9 - 3.0]
    outcome = asyncio.run(
        play([], [0.0] * WORLD, lambda rank, now: made_up[(rank + int(7 * now)) % 4], is_lost=True, seconds=100.0)
    )
    assert outcome.named_at is not None
    assert outcome.named_at - STUCK_AT < 6.0 + timeline.MAX_BEHIND


def test_a_metric_says_how_far_the_collector_is_behind() -> None:
    async def scene() -> list[float | None]:
        at, found = Clock(), []
        service = new_service(at)

        def note() -> None:
            found.append(service.metrics.registry.get_sample_value("otel_fr_collector_behind_seconds"))

        for number, late in ((1, 0.0), (2, 0.1), (3, 6.2)):
            at.advance(late)
            for rank in EVERYONE:
                await service.take(LOGS, report(rank, number, at.now - late, None, 1.7e9))
            note()
        at.advance(60.0)
        note()
        return found

    assert asyncio.run(scene()) == [0.0, 0.0, 6.5, 0.0]


def test_a_report_is_late_by_what_it_took_longer_than_the_quickest_one() -> None:
    delay = Delay()
    lags = [delay.lag(5.0 + n, 100.0 + n + took) for n, took in enumerate((0.2, 0.1, 3.1, 0.6))]
    assert lags == pytest.approx([0.0, 0.0, 3.0, 0.5])


def test_a_way_that_has_become_longer_for_good_is_no_lag_in_the_end() -> None:
    delay, longer = Delay(), 4.0
    delay.lag(0.0, 100.0)
    lags = [delay.lag(float(n), 100.0 + n + longer) for n in range(1, 200)]
    assert lags[0] == longer
    assert set(lags[int(2 * timeline.QUICKEST_SECONDS) + 2 :]) == {0.0}


def test_one_slow_rank_of_many_is_no_lag_of_the_run() -> None:
    lags = Lags()
    for number in range(40):
        lags.note(9.0 if number % 20 == 7 else 0.01, 50.0 + number / 10)
    assert lags.recent(54.0) == 0.0
    for number in range(40):
        lags.note(9.0, 54.0 + number / 100)
    assert lags.recent(54.39) == 9.5
    assert lags.recent(55.39) == 10.5, "and none has come since"
    assert lags.recent(60.0) == 0.0, "seconds ago"


def test_reports_that_were_made_later_than_announced_were_held() -> None:
    delay = Delay()
    held = []
    for stamp, announced in ((5.0, 1.0), (6.0, 1.0), (9.5, 1.0), (14.5, 5.0), (2.0, 1.0)):
        delay.lag(stamp, 100.0 + stamp, announced)
        held.append(delay.held)
    assert held == [0.0, 0.0, 2.5, 0.0, 0.0]


def test_no_rank_is_silent_whose_monitor_waits_for_an_answer() -> None:
    """After a restart below a large job: each report takes as long as the others, so none is seen to be late."""
    way, ranks = 6.0, range(20)

    async def scene() -> set[int]:
        at, silent = Clock(0.0), set[int]()
        service = new_service(at)
        made = {rank: rank * way / len(ranks) for rank in ranks}
        numbers = dict.fromkeys(ranks, 0)
        while at.now < 8 * way:
            for rank in ranks:
                if at.now >= made[rank] + way:
                    numbers[rank] += 1
                    await service.take(LOGS, report(rank, numbers[rank], made[rank], None, 1.7e9))
                    made[rank] += way
            for run in service.runs.by_id.values():
                if min(numbers.values()) > 1:
                    silent |= {r for r, one in run.ranks.items() if one.is_silent(at.now, *run.unheard(at.now))}
            at.advance(TICK)
        return silent

    assert asyncio.run(scene()) == set()


def test_after_a_restart_no_rank_is_silent_that_was_heard_before_the_others() -> None:
    """The first reports of a large job are taken in one after the other; nobody's second one can come meanwhile."""
    ranks, each = range(20), 0.75

    async def scene() -> tuple[set[int], float]:
        at, silent, judged_at = Clock(0.0), set[int](), math.inf
        service = new_service(at)
        made = {rank: rank * each for rank in ranks}
        numbers = dict.fromkeys(ranks, 50)
        while at.now < 3 * each * len(ranks):
            for rank in ranks:
                if at.now >= made[rank]:
                    numbers[rank] += 1
                    data = report(rank, numbers[rank], made[rank], None, 1.7e9, world=len(ranks))
                    await service.take(LOGS, data)
                    made[rank] += each * len(ranks)
            service.step()
            (run,) = service.runs.by_id.values()
            if not service.judge._grace.waits_for(run, at.now):
                judged_at = min(judged_at, at.now)
                silent |= {r for r, one in run.ranks.items() if one.is_silent(at.now, *run.unheard(at.now))}
            at.advance(TICK)
        return silent, judged_at

    silent, judged_at = asyncio.run(scene())
    assert silent == set()
    assert judged_at == pytest.approx(each * (len(ranks) - 1), abs=1.0)


@pytest.mark.parametrize(("gap", "is_named"), [(0.1, True), (0.9, False)])
def test_no_silence_counts_for_time_in_which_the_event_loop_was_blocked(gap: float, is_named: bool) -> None:
    """A collector that gets hold of its processor for a moment now and then: it has read hardly anything."""

    async def scene() -> bool:
        at = Clock()
        service = new_service(at)
        for rank in EVERYONE:
            await service.take(LOGS, report(rank, 1, at.now, None, 0.0))
        for step in range(int(3.3 / gap)):
            at.advance(gap)
            await service.take(LOGS, report(0, 2 + step, at.now, None, 0.0))
            service.step()
        (run,) = service.runs.by_id.values()
        return run.ranks[1].is_silent(at.now, *run.unheard(at.now))

    assert asyncio.run(scene()) is is_named


def test_no_silence_counts_while_requests_with_reports_wait_for_their_turn() -> None:
    async def scene() -> tuple[float, float]:
        at = Clock()
        service = new_service(at)
        intake = Intake(service, clock=lambda: at.now)
        await service.take(LOGS, report(0, 1, at.now, None, 0.0))
        (run,) = service.runs.by_id.values()
        turns = [asyncio.Event() for _ in range(PARALLEL_REPORTS)]

        async def take(data: bytes, hold: asyncio.Event | None) -> None:
            with intake.admit("here", "", LOGS) as request:
                if hold is not None:
                    service.take = lambda *_, given=hold: _answer(given)  # type: ignore[method-assign]
                await intake.take(request, LOGS, data)

        before = [asyncio.create_task(take(b"", turn)) for turn in turns]
        await asyncio.sleep(0)
        waits = asyncio.create_task(take(b"", None))
        await asyncio.sleep(0)
        at.advance(4.0)
        behind = run.lateness(at.now)
        for turn in turns:
            turn.set()
        await asyncio.gather(*before, waits)
        return behind, run.lateness(at.now)

    assert asyncio.run(scene()) == (4.0, 0.0)


async def _answer(turn: asyncio.Event) -> bytes:
    await turn.wait()
    return b""
