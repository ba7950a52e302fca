"""Where ranks are seen to have made different collectives: from what real monitors compute of made records, and from
numbers that only a program that is no monitor sends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st
from otel_fr_collector.jobs.fingerprints import Fingerprints

from otel_fr.monitor.ring.fingerprints import Fingerprints as OfMonitor
from tests.support.rings import float_signature
from tests.unit.monitor.test_span_sampling import call

RANKS = 3
LARGEST = 2**63 - 1
TYPICAL, ODD = call(1).record, float_signature(reduce_op="max")
LATER = 10**15

STEPS = st.lists(st.tuples(st.integers(0, RANKS - 1), st.sampled_from([1, 7, 40, 150]), st.booleans()), max_size=60)
NUMBERS = st.integers(0, 300) | st.integers(LARGEST - 3, LARGEST)


class Group:
    """The monitors of a group's ranks, and their collector.

    Args:
        odd: the call of rank 0 that is another.
        plain: ranks whose recorders tell no reduce ops.
    """

    def __init__(self, odd: int, plain: frozenset[int] = frozenset()) -> None:
        self.odd = odd
        self.plain = plain
        self.at = [0] * RANKS
        self.monitors = [OfMonitor() for _ in range(RANKS)]
        self.collector = Fingerprints()
        self.windows: list[tuple[int, int]] = []

    def make(self, rank: int, count: int) -> None:
        """The rank makes its next calls."""
        numbers = range(self.at[rank] + 1, self.at[rank] + count + 1)
        records = [TYPICAL._replace(record_id=number - 1, coll_seq=number) for number in numbers]
        if rank == 0 and self.odd in numbers:
            records[self.odd - numbers[0]] = records[self.odd - numbers[0]]._replace(signature=ODD)
        if rank in self.plain:
            records = [one._replace(signature=replace(one.signature, reduce_op=None)) for one in records]
        self.monitors[rank].take(records)
        self.at[rank] += count

    def report(self, rank: int) -> None:
        for fingerprint in self.monitors[rank].report(LATER).values():
            if (found := self.collector.note(rank, fingerprint, 0.0)) is not None:
                self.windows.append((found.first, found.last))


@given(st.integers(0, 200), STEPS)
@example(72, [(2, 150, True), (0, 1, True), (0, 150, True), (2, 1, True), (2, 1, True), (2, 7, True)])
def test_ranks_at_any_pace_differ_only_where_they_do_and_in_ranges_that_can_be_asked_for(
    odd: int, steps: list[tuple[int, int, bool]]
) -> None:
    group = Group(odd)
    for rank, count, has_report in steps:
        group.make(rank, count)
        if has_report:
            group.report(rank)
    most = max(*group.at, odd, 1)
    for rank in range(RANKS):
        group.make(rank, most - group.at[rank])
        group.report(rank)
    assert bool(group.windows) is bool(odd)
    assert all(1 <= first <= last <= most for first, last in group.windows)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(NUMBERS, min_size=1, max_size=7)), max_size=20))
@example([(0, [0, LARGEST, 7]), (1, [0, LARGEST, 8]), (1, [0, LARGEST, 9])])
@example([(0, [9, 1, 7]), (1, [9, 1, 8])])
def test_whatever_numbers_come_a_range_can_be_sent_over_the_control_stream(
    reports: list[tuple[int, list[int]]],
) -> None:
    collector = Fingerprints()
    for rank, numbers in reports:
        found = collector.note(rank, numbers, 0.0)
        assert found is None or 0 <= found.first <= found.last <= LARGEST


@given(st.sets(st.integers(0, RANKS - 1)).map(frozenset), STEPS)
def test_ranks_whose_recorders_tell_less_never_differ_from_the_others(
    plain: frozenset[int], steps: list[tuple[int, int, bool]]
) -> None:
    group = Group(0, plain)
    for rank, count, has_report in steps:
        group.make(rank, count)
        if has_report:
            group.report(rank)
    for rank in range(RANKS):
        group.report(rank)
    assert group.windows == []
