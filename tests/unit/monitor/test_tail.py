"""The ring, followed: each call comes out once, when it has ended."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_fr.monitor.ring.tail import MAX_CHECKED, Tail
from otel_fr.ring import KIND_GROUP, RecordState
from otel_fr.ring.layout import HEADER, POSTED, SLOT_SIZE
from tests.support.followed_ring import FollowedRing
from tests.support.rings import signature


class Ring(FollowedRing):
    def __init__(self, folder: Path, capacity: int = 100) -> None:
        super().__init__(folder, capacity)
        self.groups = [self.add_group(number) for number in (1, 2)]
        self.tail = Tail(self.reader)

    def issue(self, at: int = 0, group: int = 0) -> tuple[int, int, int]:
        return self.append(self.groups[group], at or time.monotonic_ns())

    def destroy(self, at: int, group: int = 0) -> tuple[int, int, int]:
        """The group is being destroyed."""
        what = signature("destroy_process_group", ())
        return *self.append(self.groups[group], at, what, kind=KIND_GROUP, number=1)[:2], 0

    def end(self, call: tuple[int, int, int], state: RecordState = RecordState.COMPLETED, at: int = 0) -> None:
        self.writer.complete(*call, state, at or time.monotonic_ns())

    def poll(self) -> list[int]:
        return [item.record.record_id for item in self.tail.poll()]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with closing(Ring(tmp_path)) as ring:
        yield ring


def test_a_call_comes_out_once_when_it_has_ended(ring: Ring) -> None:
    call = ring.issue()
    assert ring.poll() == []
    assert list(ring.tail.in_flight) == [0]
    ring.end(call)
    assert ring.poll() == [0]
    assert ring.poll() == []
    assert not ring.tail.in_flight


def test_the_end_and_its_time_are_those_that_were_written(ring: Ring) -> None:
    call = ring.issue(at=1_000)
    ring.poll()
    ring.end(call, RecordState.FAILED, at=7_000)
    (item,) = ring.tail.poll()
    assert (item.record.state, item.record.ended_ns) == (RecordState.FAILED, 7_000)
    assert [failed.record.record_id for failed in ring.tail.failed] == [0]
    assert ring.tail.last is not None
    assert ring.tail.last.record.state is RecordState.FAILED


def test_calls_may_end_in_any_order_and_none_is_lost_or_doubled(ring: Ring) -> None:
    rng = random.Random(7)
    open_calls: list[tuple[int, int, int]] = []
    seen: list[int] = []
    issued = 0
    for _ in range(400):
        if open_calls and (len(open_calls) > 60 or rng.random() < 0.5):
            ring.end(open_calls.pop(rng.randrange(min(len(open_calls), 8))))
        else:
            open_calls.append(ring.issue())
            issued += 1
        if rng.random() < 0.2:
            seen += ring.poll()
    for call in open_calls:
        ring.end(call)
    seen += ring.poll()
    assert sorted(seen) == list(range(issued))
    assert ring.tail.missed == 0


def test_the_gap_is_from_the_previous_end_to_the_issue(ring: Ring) -> None:
    first = ring.issue(at=1_000_000_000)
    ring.end(first, at=3_000_000_000)
    second = ring.issue(at=3_500_000_000)
    ring.end(second, at=4_000_000_000)
    items = ring.tail.poll()
    third = ring.issue(at=6_000_000_000)
    ring.end(third, at=6_000_000_001)
    items += ring.tail.poll()
    assert [item.gap_s for item in items] == [None, 0.5, 2.0]


def test_movement_is_the_last_issue_or_end(ring: Ring) -> None:
    call = ring.issue(at=5_000)
    ring.poll()
    assert ring.tail.moved_ns == 5_000
    ring.end(call, at=9_000)
    ring.poll()
    assert ring.tail.moved_ns == 9_000


def test_a_call_of_unknown_end_is_uncertain_until_the_next_of_its_group(ring: Ring) -> None:
    ring.end(ring.issue(), RecordState.UNKNOWN)
    ring.issue(group=1)
    assert ring.poll() == [0]
    assert [item.record.record_id for item in ring.tail.uncertain.values()] == [0]
    ring.end(ring.issue())
    ring.poll()
    assert not ring.tail.uncertain


def test_a_call_that_stays_in_flight_while_the_ring_wraps_is_still_in_flight(ring: Ring) -> None:
    """Another group continues at full speed: the stuck call is the one that matters."""
    ring.issue(group=1)
    for _ in range(5):
        for _ in range(60):
            ring.end(ring.issue(group=0))
        ring.poll()
    assert list(ring.tail.in_flight) == [0]
    assert ring.tail.missed == 0


def test_a_call_that_ended_unseen_while_the_ring_wrapped_is_counted_and_forgotten(ring: Ring) -> None:
    call = ring.issue()
    ring.poll()
    for _ in range(150):
        ring.end(ring.issue(group=1))
    ring.end(call)
    ring.poll()
    assert not ring.tail.in_flight
    assert ring.tail.missed == 1


def test_thousands_of_calls_in_flight_are_checked_in_turns_and_all_come_out(tmp_path: Path) -> None:
    ring = Ring(tmp_path, capacity=10_000)
    calls = [ring.issue() for _ in range(4 * MAX_CHECKED)]
    ring.poll()
    for call in calls:
        ring.end(call)
    first = ring.poll()
    assert 0 < len(first) <= MAX_CHECKED
    seen = set(first)
    for _ in range(50):
        seen.update(ring.poll())
    assert len(seen) == len(calls)


def test_everything_is_looked_at_when_the_rank_has_ended(tmp_path: Path) -> None:
    ring = Ring(tmp_path, capacity=10_000)
    calls = [ring.issue() for _ in range(3 * MAX_CHECKED)]
    ring.poll()
    for call in calls:
        ring.end(call)
    assert len(ring.tail.poll(everything=True)) == len(calls)


def test_damaged_records_are_skipped_and_do_not_block_the_rest(ring: Ring) -> None:
    for _ in range(3):
        ring.end(ring.issue())
    with ring.writer.path.open("r+b") as file:
        data = file.read()
        slots = range(HEADER.unpack_from(data)[10], len(data), SLOT_SIZE)
        at = next(start for start in slots if data[start : start + 8] == (3).to_bytes(8, "little"))  # its ticket
        file.seek(at + 20)
        file.write(b"\xff\xff")
    assert ring.poll() == [0, 1]
    ring.poll()
    assert not ring.tail.is_behind()
    ring.end(ring.issue())
    assert ring.poll() == [3]


@pytest.mark.parametrize("state", [RecordState.COMPLETED, RecordState.FAILED])
def test_a_group_that_is_destroyed_is_in_flight_until_then_and_no_progress(ring: Ring, state: RecordState) -> None:
    """What its rank did last is the call before it."""
    ring.end(ring.issue(at=1_000), at=2_000)
    ring.end(ring.issue(at=3_000, group=1), RecordState.UNKNOWN, at=4_000)
    ring.poll()
    before = ring.tail.last, ring.tail.moved_ns, list(ring.tail.uncertain)
    call = ring.destroy(at=9_000, group=1)
    assert ring.poll() == []
    assert list(ring.tail.in_flight) == [2]
    assert (ring.tail.last, ring.tail.moved_ns, list(ring.tail.uncertain)) == before
    ring.writer.remove_group(ring.groups[1])
    ring.end(call, state, at=10_000)
    assert ring.poll() == [2]
    assert (ring.tail.last, ring.tail.moved_ns) == before[:2]
    assert (len(ring.tail.failed), len(ring.tail.in_flight)) == (0, 0)


def test_the_newest_call_waits_from_when_the_ring_says_so(ring: Ring) -> None:
    """The collector takes what is reported of the newest call for what is known of it last."""
    call = ring.issue()
    ring.poll()
    ring.writer.wait(call[0], POSTED)
    ring.poll()
    assert ring.tail.last is not None
    assert ring.tail.last.record.is_posted
    ring.writer.wait(call[0], 7)
    ring.poll()
    assert ring.tail.last.record.waited_ns == 7
