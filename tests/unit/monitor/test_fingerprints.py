"""The running fingerprints of a rank's groups: which numbers it reports, and what happens when calls are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.fingerprint import MASK, STEP, hash_of, term
from otel_fr.monitor.ring.fingerprints import SETTLED_NS, Fingerprints, of_range
from otel_fr.ring import KIND_P2P, GroupDef, Record
from tests.support.records import GROUP, made_record
from tests.support.rings import float_signature

SMALL, LARGE = float_signature(), float_signature(sizes=((7,),))
LATER = 10**15


def record(number: int, **more: object) -> Record:
    """The call with that number, which is the record before that number."""
    return made_record(number, 0.001, SMALL, **{"record_id": number - 1, **more})


def marks(found: tuple[int, ...]) -> dict[int, int]:
    return dict(zip(found[1::2], found[2::2], strict=True))


def expected(numbers: range) -> int:
    return sum(term(hash_of(SMALL), number) for number in numbers) & MASK


def test_what_is_reported_covers_the_calls_up_to_a_number() -> None:
    own = Fingerprints()
    own.take([record(number) for number in range(1, 41)])
    found = own.report(LATER)[GROUP.id]
    assert found[0] == 1
    assert marks(found) == {40: expected(range(1, 41))}  # the first report comes after more than one step
    own.take([record(number) for number in range(41, 51)])
    assert marks(own.report(LATER)[GROUP.id]) == {47: expected(range(1, 48)), 50: expected(range(1, 51))}


def test_the_newest_batch_may_still_grow() -> None:
    own = Fingerprints()
    own.take([record(number) for number in range(1, 6)])
    now = record(5).issued_ns
    assert marks(own.report(now)[GROUP.id]) == {4: expected(range(1, 5))}
    assert marks(own.report(now, is_over=True)[GROUP.id]) == {5: expected(range(1, 6))}
    assert marks(own.report(now + SETTLED_NS)[GROUP.id]) == {5: expected(range(1, 6))}


@given(st.lists(st.integers(0, 400), min_size=2, max_size=40), st.lists(st.integers(0, 400), min_size=2, max_size=40))
def test_ranks_that_report_at_different_times_have_numbers_in_common(first: list[int], second: list[int]) -> None:
    """Once both went on by eight times what the one with longer intervals does between two reports."""

    def reported(calls: list[int]) -> tuple[dict[int, int], int]:
        own, number, found = Fingerprints(), 0, {}
        for more in calls:
            own.take([record(n) for n in range(number + 1, number + more + 1)])
            number += more
            found.update(marks(own.report(0).get(GROUP.id, ())))
        return found, number

    (a, end_a), (b, end_b) = reported(first), reported(second)
    assert all(a[number] == b[number] for number in a.keys() & b.keys())
    longest = max(STEP, *first, *second)
    if min(end_a, end_b) > 8 * longest:
        assert a.keys() & b.keys()


def test_other_calls_and_groups_of_one_rank_are_left_out() -> None:
    own = Fingerprints()
    alone = GroupDef("b2", "1", "", (0,), "gloo", 1)
    own.take([record(1), record(2, kind=KIND_P2P), record(3, group=alone), record(4, coll_seq=2)])
    found = own.report(LATER)
    assert marks(found[GROUP.id]) == {2: expected(range(1, 3))}
    assert found.keys() == {GROUP.id}


def test_after_a_call_that_is_missing_the_fingerprint_begins_anew() -> None:
    own = Fingerprints()
    own.take([record(number) for number in range(1, 10)])
    own.take([record(number) for number in range(20, 30)])
    found = own.report(LATER)[GROUP.id]
    assert found == (21, 29, expected(range(21, 30)))
    again = GroupDef("c3", "2", "", (0, 1), "gloo", 2)
    own.take([record(30, coll_seq=1, group=again)])
    assert own.report(LATER)[again.id] == (1, 1, expected(range(1, 2)))


def test_a_group_that_is_forgotten_is_not_reported() -> None:
    own = Fingerprints()
    own.take([record(1)])
    own.forget([GROUP.id])
    assert own.report(LATER) == {}


@pytest.mark.parametrize("odd", [0, 107, 300, 399])
def test_a_range_is_narrowed_to_the_call_that_differs(odd: int) -> None:
    """As the collector does: the part whose fingerprint differs first holds the first call that differs."""

    def calls(first: int, last: int, odd: int) -> list[tuple[int, object]]:
        return [(number, LARGE if number == odd else SMALL) for number in range(first, last + 1)]

    first, last = 101, 399
    while last > first:
        a, b = (marks(of_range(calls(first, last, which), first, last, 5)) for which in (0, odd))  # type: ignore[arg-type]
        assert a.keys() == b.keys()
        assert max(a) == last
        assert len(a) <= 5
        differing = [number for number in a if a[number] != b[number]]
        if not odd:
            assert differing == []
            return
        before = [number for number in a if number < differing[0]]
        first, last = max(before, default=first - 1) + 1, differing[0]
    assert first == odd


def test_a_range_counts_the_calls_of_a_batch() -> None:
    one, two = (1, SMALL), (1, LARGE)
    assert of_range([one, two], 1, 1, 4) != of_range([two, one], 1, 1, 4)
    assert of_range([one, two], 1, 1, 4) != of_range([one], 1, 1, 4)


def test_signatures_are_told_apart_by_what_they_are() -> None:
    """Not by the object: a reader makes a new one of each definition."""
    own, other = Fingerprints(), Fingerprints()
    own.take([record(1), record(2)])
    other.take([record(1), record(2, signature=replace(SMALL))])
    assert own.report(LATER) == other.report(LATER)
