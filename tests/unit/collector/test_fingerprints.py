"""Ranks that made different collectives, found by their fingerprints: who is asked for what, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector import timeline
from otel_fr_collector.control import Control
from otel_fr_collector.disagreements import MAX_ASKED, Disagreements
from otel_fr_collector.incidents.triggers import Judging, due
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.fingerprints import MAX_APART, Fingerprints, Window
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.metrics import Metrics

from otel_fr.control.v1 import control_pb2
from otel_fr.fingerprint import MASK, NO_REDUCE_OP, hash_of, term
from otel_fr.match import CallState, Category, Group, Signature, diagnose
from otel_fr.monitor.ring.fingerprints import of_range
from otel_fr.rank_report import ReportedRange
from tests.support.told import apply, told, told_group

ALL_REDUCE = Signature("all_reduce", ((64,),), ((64,),), ("Float",), ("Float",), reduce_op="sum")
OTHER = ALL_REDUCE._replace(reduce_op="max")
GROUP = "a1"


@dataclass
class Job:
    """A run whose ranks answer from rings that go back to the number ``oldest``.

    ``odd``: rank -> the number of the collective in which its reduce op is another.
    ``late``: rank -> seconds that each of its answers takes.
    ``plain``: ranks whose recorder tells no reduce ops; ``is_old``: their monitors do not say that.
    """

    size: int
    odd: dict[int, int] = field(default_factory=dict)
    oldest: int = 1
    silent: frozenset[int] = frozenset()
    late: dict[int, float] = field(default_factory=dict)
    plain: frozenset[int] = frozenset()
    is_old: bool = False
    on_the_way: list[tuple[float, int, int, ReportedRange]] = field(default_factory=list)
    now: float = 100.0
    numbers: dict[int, int] = field(default_factory=dict)
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    judged_at: float | None = None

    def __post_init__(self) -> None:
        self.run = Run(RunId("job", 0, "r1"), self.now, self.now, world_size=self.size)
        self.group = Group(GROUP, "0", "default_pg", tuple(range(self.size)))
        self.control, self.metrics = Control(), Metrics()
        self.disagreements = Disagreements(self.control, self.metrics)

    def signature(self, rank: int, number: int) -> Signature:
        made = OTHER if self.odd.get(rank) == number else ALL_REDUCE
        return made._replace(reduce_op=None) if rank in self.plain else made

    def report(self, rank: int, number: int, fetched: ReportedRange | None = None) -> None:
        usual = hash_of(self.signature(rank, 0))
        total = usual * (number * number + 2 * number)  # the sum of `term` over all numbers up to this one
        if self.odd.get(rank, number + 1) <= number:
            total += term(hash_of(self.signature(rank, self.odd[rank])), self.odd[rank]) - term(usual, self.odd[rank])
        self.numbers[rank] = self.numbers.get(rank, 0) + 1
        untold = (NO_REDUCE_OP,) if rank in self.plain and not self.is_old else ()
        progress = told_group(self.group, number, number, fingerprint=(1, number, total & MASK, *untold))
        apply(self.run, rank, self.numbers[rank], self.now, groups=(progress,), fetched=fetched)

    def report_all(self, number: int) -> None:
        for rank in range(self.size):
            self.report(rank, number)

    def answer(self, rank: int, watcher: object) -> None:
        """Carry out what the monitor was asked for, as `otel_fr.monitor.telemetry.call_ranges` does."""
        queue = watcher._commands  # type: ignore[attr-defined]
        while not queue.empty():
            wanted = control_pb2.Command.FromString(queue.get_nowait()).fetch_calls
            self.asked.append((rank, wanted.first, wanted.last))
            if rank in self.silent:
                continue
            first = max(wanted.first, self.oldest)
            numbers = range(first, wanted.last + 1)
            if len(numbers) <= 32:
                calls = [
                    RankCall(rank, n - 1, GROUP, "collective", n, self.signature(rank, n), CallState.COMPLETED)
                    for n in numbers
                ]
                found = ReportedRange(GROUP, first, wanted.last, calls=tuple(told(call, self.now) for call in calls))
            else:
                pairs = [(n, self.signature(rank, n)) for n in numbers]
                sums = of_range(pairs, first, wanted.last, 32)  # type: ignore[arg-type]
                found = ReportedRange(GROUP, first, wanted.last, sums[: len(sums) - self.is_old * (1 - len(sums) % 2)])
            self.on_the_way.append((self.now + self.late.get(rank, 0.0), rank, wanted.last, found))
        for answer in [one for one in self.on_the_way if one[0] <= self.now]:
            self.on_the_way.remove(answer)
            self.report(*answer[1:])

    def settle(self, seconds: float = 30.0) -> None:
        """Let time pass, with monitors that listen."""
        requests = [control_pb2.WatchRequest(job_id="job", run_id="r1", rank=rank) for rank in range(self.size)]
        contexts = [self.control.watch(request) for request in requests]
        watchers = [context.__enter__() for context in contexts]
        until = self.now + seconds
        while self.now < until and (self.run.differences.windows or self.run.differences.inquiries or self.on_the_way):
            self.now += 0.1
            if self.judged_at is None and due(self.run, Judging(), self.now, has_open=False, last_change=0.0).mismatch:
                self.judged_at = self.now
            self.disagreements.step(self.run, self.now)
            for rank, watcher in enumerate(watchers):
                self.answer(rank, watcher)
        for context in contexts:
            context.__exit__(None, None, None)

    def outcome(self) -> dict[str, float]:
        names = ("mismatch", "none", "undecided")
        return {name: n for name in names if (n := self.metrics.disagreements.labels(name)._value.get())}

    def verdict(self) -> list[tuple[Category, tuple[int, ...], int | None]]:
        taken = snapshot(self.run, self.now + timeline.MISMATCH_PATIENCE)
        return [(one.category, one.culprit_ranks, one.sequence_id) for one in diagnose(taken.evidence())]


def test_a_call_of_which_no_span_came_is_named_with_its_rank() -> None:
    job = Job(4, {2: 57})
    job.report_all(31)
    job.report_all(95)
    assert job.run.differences.windows[GROUP] == Window(32, 95, job.now)
    job.settle()
    assert job.run.mismatch_since is not None
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (2,), 57)]
    assert job.outcome() == {"mismatch": 1.0}


@pytest.mark.parametrize("odd", [1, 20, 20_000])
def test_a_long_range_is_narrowed_in_a_few_rounds(odd: int) -> None:
    job = Job(3, {0: odd})
    job.report_all(20_000)
    job.settle()
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (0,), odd)]
    assert len(job.asked) <= 3 * 4


def test_a_call_that_is_no_longer_in_the_rings_leaves_it_undecided(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(3, {1: 5}, oldest=40)
    job.report_all(95)
    job.settle()
    assert job.verdict() == []
    assert job.outcome() == {"undecided": 1.0}
    assert "ranks of group default_pg (0) disagree about collectives 1 to 95; cannot decide" in caplog.text
    assert "which is wrong: its rings have overwritten" in caplog.text
    again = Job(3, {1: 5}, oldest=40)
    again.control, again.metrics, again.disagreements = job.control, job.metrics, job.disagreements
    again.report_all(95)
    again.settle()
    assert job.outcome() == {"undecided": 2.0}
    assert len(caplog.messages) == 1, "once a minute: a job may have thousands of groups"


def test_without_monitors_that_listen_it_is_undecided(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(2, {1: 5})
    job.report_all(15)
    job.now += timeline.ALL_REPORTED + 0.1
    job.disagreements.step(job.run, job.now)
    assert job.outcome() == {"undecided": 1.0}
    assert "too few of its monitors are connected to this collector" in caplog.text


def test_ranks_that_do_not_answer_are_not_waited_for_for_long() -> None:
    job = Job(4, {2: 7}, silent=frozenset({0}))
    job.report_all(15)
    job.settle(timeline.DIFFERENCE_SETTLE + timeline.ANSWER_SECONDS + 1.0)
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (2,), 7)]


@pytest.mark.parametrize("odd", [7, 20_000])
@pytest.mark.parametrize("late", [{0: 2.0}, {0: 5.0}, {0: 5.0, 1: 7.0}, {0: 4.0, 1: 5.0, 3: 6.0}])
def test_an_answer_that_comes_late_shows_which_rank_is_the_odd_one(odd: int, late: dict[int, float]) -> None:
    """Without the late answers, two ranks are left and either may be wrong, or too few are left to continue."""
    job = Job(4, {2: odd}, late=late)
    job.report_all(odd + 3)
    job.settle(timeline.LATE_ANSWERS)
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (2,), odd)]


def test_a_mismatch_is_judged_once_the_round_is_over_in_which_its_calls_come() -> None:
    job = Job(4, {2: 7}, late={0: timeline.ANSWER_SECONDS - 0.2, 1: 0.5})
    job.report_all(15)
    asked_at = job.now + timeline.DIFFERENCE_SETTLE
    job.settle()
    assert job.judged_at is not None
    assert timeline.ANSWER_SECONDS - 0.3 < job.judged_at - asked_at < timeline.ANSWER_SECONDS + 0.3
    job = Job(4, {2: 7}, silent=frozenset({0}))
    job.report_all(15)
    asked_at = job.now + timeline.DIFFERENCE_SETTLE
    job.settle(2 * timeline.ANSWER_SECONDS)
    now = asked_at + timeline.MISMATCH_PATIENCE + timeline.ANSWER_SECONDS
    assert due(job.run, Judging(), now, has_open=False, last_change=0.0).mismatch


def test_no_answer_is_taken_after_a_while() -> None:
    job = Job(4, {2: 7}, late=dict.fromkeys((0, 1), timeline.LATE_ANSWERS + 20.0))
    job.report_all(15)
    job.settle(2 * timeline.LATE_ANSWERS)
    assert not job.on_the_way
    known = {rank for instance in job.run.groups[GROUP].incomplete.values() for rank in instance.calls}
    assert known == {2, 3}


def test_a_member_that_reports_later_is_waited_for_so_that_it_shows_who_is_odd() -> None:
    job = Job(3, {1: 9})
    job.report(1, 15)
    job.report(2, 15)
    job.settle(5.0)
    assert job.asked == []
    job.report(0, 15)
    job.settle()
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (1,), 9)]


def test_of_two_of_three_ranks_none_is_named() -> None:
    job = Job(3, {1: 9})
    job.report(1, 15)
    job.report(2, 15)
    job.settle(timeline.ALL_REPORTED + timeline.ANSWER_SECONDS + 1.0)
    assert job.verdict() == []
    assert job.outcome() == {"undecided": 1.0}


def test_of_a_large_group_those_that_differ_are_asked_with_twice_as_many_others() -> None:
    job = Job(200, dict.fromkeys(range(100, 110), 9))
    job.report_all(15)
    job.settle()
    asked = {rank for rank, _, _ in job.asked}
    assert len(asked) == MAX_ASKED
    assert asked >= set(range(100, 110))
    (found,) = job.verdict()
    assert found == (Category.REDUCE_OP_MISMATCH, tuple(range(100, 110)), 9)


def test_a_mismatch_that_spans_have_shown_is_not_asked_for() -> None:
    job = Job(2, {1: 9})
    job.report(0, 5)
    job.report(1, 5)
    group = job.run.groups[GROUP]
    for rank in range(2):
        group.add(RankCall(rank, 8, GROUP, "collective", 9, job.signature(rank, 9), CallState.COMPLETED))
    job.report_all(15)
    job.settle()
    assert job.asked == []


@pytest.mark.parametrize(("size", "odd"), [(6, 20), (6, 20_000), (200, 20)])
def test_beside_ranks_whose_recorders_tell_less_the_odd_one_is_found(size: int, odd: int) -> None:
    job = Job(size, {1: odd}, plain=frozenset(range(3, size, 2)))
    job.report_all(odd + 3)
    job.settle()
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (1,), odd)]
    assert len({rank for rank, _, _ in job.asked}) <= MAX_ASKED


def test_differences_that_are_legal_again_and_again_leave_room_for_one_that_is_not() -> None:
    """As earlier monitors, which do not say that their recorder tells less, make them."""
    job = Job(5, {0: 1_500}, plain=frozenset({3, 4}), is_old=True)
    for number in range(16, 2_000, 16):
        job.report_all(number - 1)
        job.settle(5.0)
        job.now += 5.0
    assert job.run.groups[GROUP].inquiries <= 2
    assert job.verdict() == [(Category.REDUCE_OP_MISMATCH, (0,), 1_500)]


def test_ranks_that_always_differ_in_a_legal_way_are_asked_a_few_times() -> None:
    """Each of them has a recorder of its own."""
    own = Fingerprints()
    found = 0
    for number in range(15, 16 * 40, 16):
        for rank in range(4):
            if own.note(rank, (1, number, number * (1 + rank) % MASK), 0.0) is not None:
                found += 1
                own.set_apart(own.odd(range(4)))
    assert 0 < found <= 3 * MAX_APART


def test_a_rank_whose_recording_had_errors_is_not_compared() -> None:
    job = Job(3, {1: 9})
    for rank in range(3):
        job.run.rank_state(rank).has_gaps = rank == 1  # type: ignore[union-attr]
        job.report(rank, 15)
    assert not job.run.differences.windows


def test_a_rank_whose_monitor_began_later_is_compared_from_there_on() -> None:
    own = Fingerprints()
    assert own.note(0, (1, 15, 700), 0.0) is None
    assert own.note(1, (10, 15, 300), 0.0) is None
    assert own.note(0, (1, 31, 1_700), 0.0) is None
    assert own.note(1, (10, 31, 1_300), 0.0) is None
    assert own.note(0, (1, 47, 2_700), 0.0) is None
    assert own.note(1, (10, 47, 2_301), 0.0) == Window(32, 47, 0.0)


@given(
    st.dictionaries(st.integers(0, 3), st.integers(1, 200), max_size=2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=60),
)
def test_in_whatever_order_ranks_report_a_difference_is_found_and_nothing_else(
    odd: dict[int, int], steps: list[tuple[int, int]]
) -> None:
    job = Job(4, odd)
    at = dict.fromkeys(range(4), 0)
    for rank, more in [*steps, *((rank, 240 - sum(n for r, n in steps if r == rank)) for rank in range(4))]:
        at[rank] += max(0, more)
        job.report(rank, max(1, at[rank]))
    job.report_all(10_000)
    job.settle()
    assert [found[0] for found in job.verdict()][:1] == [Category.REDUCE_OP_MISMATCH] * bool(odd)
    assert min((found[2] or 0 for found in job.verdict()), default=0) == min(odd.values(), default=0)
