"""When a rank is told of failed peers, and when its calls are ended."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from otel_fr.control.v1.control_pb2 import PeerFailed
from otel_fr.identity import MAX_RANKS
from otel_fr.monitor.control.peers import MAX_ORDERED, PeerWatch
from otel_fr.ring import GroupDef, Record, RecordState
from otel_fr.ring.layout import POSTED
from tests.support.records import made_record
from tests.support.rings import float_signature

STALL = 5.0
WORLD = GroupDef("w" * 16, "0", "default_pg", (0, 1, 2, 3), "gloo", 0)
PAIR = GroupDef("p" * 16, "7", "undefined", (0, 3), "gloo", 1)
"""``"undefined"`` is torch's description of a group for which `new_group` was given none."""
GROUPS = (WORLD, PAIR)
NOW = 100.0


def call(group: GroupDef, since: float, number: int = 1, waited_ns: int | None = None) -> Record:
    given = {"issued_ns": int(since * 1e9), "waited_ns": waited_ns, "state": RecordState.IN_FLIGHT, "group": group}
    return made_record(number, None, float_signature(), **given)


def failed(*ranks: int, kind: str = "stuck", reason: str = "rank 2 is stuck") -> PeerFailed:
    return PeerFailed(ranks=ranks, kind=kind, reason=reason, incident_id="i1")


def due(watch: PeerWatch, *waiting: Record, uncertain: tuple[Record, ...] = (), moved: float = 0.0) -> list[str]:
    """Names of the groups whose calls are ended now."""
    notice = watch.due(waiting, uncertain, GROUPS, moved_ns=int(moved * 1e9), now_ns=int(NOW * 1e9))
    return [] if notice is None else [group.name for group in notice.groups]


def test_a_group_without_a_description_has_its_name() -> None:
    notice = PeerWatch(STALL).told(failed(3), 0, GROUPS)
    assert notice is not None
    assert notice.message("peer_failed")["groups"] == ["default_pg", "7"]


def test_in_the_largest_job_all_other_ranks_may_fail() -> None:
    world = GroupDef("w" * 16, "0", "default_pg", tuple(range(MAX_RANKS)), "gloo", 0)
    last = GroupDef("p" * 16, "7", "", (0, MAX_RANKS - 1), "gloo", 1)
    watch = PeerWatch(STALL)
    watch.told(failed(*range(1, MAX_RANKS)), 0, [world, last])
    for group in (world, last):
        waiting = call(group, NOW - STALL, number=group.local_id)
        notice = watch.due([waiting], (), [group], moved_ns=0, now_ns=int(NOW * 1e9))
        assert notice is not None
        assert notice.ranks == group.ranks[1:]
        assert len(json.dumps(notice.message("end_calls"))) < 300


def test_a_failure_is_told_once_with_the_groups_that_it_concerns() -> None:
    watch = PeerWatch(STALL)
    notice = watch.told(failed(2), 0, GROUPS)
    assert notice is not None
    of_ranks = {"ranks": "2", "groups": ["default_pg"], "names": ["0"]}
    why = {"kind": "stuck", "reason": "rank 2 is stuck", "incident": "i1"}
    assert notice.message("peer_failed") == {"cmd": "peer_failed", **of_ranks, **why}
    assert watch.told(failed(2), 0, GROUPS) is None
    ended = watch.told(failed(2, kind="ended"), 0, GROUPS)  # what was a guess is certain now
    assert ended is not None
    assert ended.ranks == (2,)


def test_a_rank_that_is_seen_running_here_has_not_failed_because_the_collector_does_not_hear_of_it() -> None:
    watch = PeerWatch(STALL)
    assert watch.told(failed(1, kind="silent"), 0, GROUPS, running=[0, 1]) is None
    assert due(watch, call(WORLD, since=0.0)) == []
    notice = watch.told(failed(1, 2, kind="silent"), 0, GROUPS, running=[0, 1])
    assert notice is not None
    assert notice.ranks == (2,)
    assert watch.told(failed(1, kind="stuck"), 0, GROUPS, running=[0, 1]) is not None


def test_neither_its_own_failure_nor_that_of_a_rank_in_none_of_its_groups_is_told() -> None:
    watch = PeerWatch(STALL)
    assert watch.told(failed(0), 0, GROUPS) is None
    assert watch.told(failed(9), 0, GROUPS) is None
    assert due(watch, call(WORLD, 0.0)) == []


def test_an_impossible_rank_is_not_told() -> None:
    notice = PeerWatch(STALL).told(failed(-5, 2), 0, GROUPS)
    assert notice is not None
    assert notice.ranks == (2,)


def test_calls_are_ended_only_in_groups_with_a_failed_member_after_the_stall_time() -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(2), 0, GROUPS)
    assert due(watch, call(PAIR, 0.0)) == []
    assert due(watch, call(WORLD, NOW - STALL + 0.1)) == []
    assert due(watch, call(WORLD, NOW - STALL, number=2)) == ["0"]
    assert due(watch, call(WORLD, NOW - STALL, number=2)) == []  # asked for once
    assert due(watch, call(WORLD, NOW - STALL, number=3)) == ["0"]


def test_however_many_calls_wait_each_is_ended_once() -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(2), 0, GROUPS)
    waiting = [call(WORLD, 0.0, number=number) for number in range(2 * MAX_ORDERED)]
    assert due(watch, *waiting) == ["0"]
    assert due(watch, *waiting) == []
    waiting.append(call(WORLD, 0.0, number=len(waiting)))
    assert due(watch, *waiting) == ["0"]
    assert due(watch, *waiting) == []


def test_calls_that_wait_for_a_process_that_has_ended_are_ended_after_a_second() -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(2, kind="ended"), 0, GROUPS)
    assert due(watch, call(WORLD, NOW - 0.9)) == []
    assert due(watch, call(PAIR, NOW - 1.1, number=2)) == []
    assert due(watch, call(WORLD, NOW - 1.1, number=3)) == ["0"]
    brief = PeerWatch(0.5)
    brief.told(failed(2, kind="ended"), 0, GROUPS)
    assert due(brief, call(WORLD, NOW - 0.6)) == ["0"]


def test_a_message_that_no_thread_waits_for_is_not_ended() -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(2), 0, GROUPS)
    assert due(watch, call(WORLD, 0.0, waited_ns=POSTED)) == []
    assert due(watch, call(WORLD, 0.0, waited_ns=int((NOW - 1) * 1e9))) == []
    assert due(watch, call(WORLD, 0.0, waited_ns=int((NOW - STALL) * 1e9))) == ["0"]


def test_a_call_that_may_have_ended_counts_only_where_the_failure_is_certain_and_nothing_moves() -> None:
    uncertain = (call(WORLD, 0.0),)
    watch = PeerWatch(STALL)
    watch.told(failed(2), 0, GROUPS)
    assert due(watch, uncertain=uncertain) == []
    watch.told(failed(2, kind="ended"), 0, GROUPS)
    assert due(watch, uncertain=uncertain, moved=NOW - 1) == []
    assert due(watch, uncertain=uncertain) == ["0"]


def test_a_rank_that_recovered_ends_no_calls() -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(2, 3), 0, GROUPS)
    assert watch.recovered([2, 5]) == (2,)
    assert due(watch, call(WORLD, 0.0)) == ["0", "7"]
    assert watch.recovered([3]) == (3,)
    assert due(watch, call(WORLD, 0.0, number=2)) == []


calls = st.builds(
    call, st.sampled_from(GROUPS), st.floats(0.0, NOW), st.integers(1, 5), st.sampled_from([None, POSTED, int(99e9)])
)


@given(st.lists(calls, max_size=8), st.sets(st.integers(0, 5), max_size=4), st.sets(st.integers(0, 5), max_size=4))
def test_no_call_is_ended_that_does_not_wait_for_a_failed_rank(
    waiting: list[Record], ranks: set[int], recovered: set[int]
) -> None:
    watch = PeerWatch(STALL)
    watch.told(failed(*ranks), 0, GROUPS)
    watch.recovered(recovered)
    left = ranks - recovered - {0}
    long = [r for r in waiting if not r.is_posted and NOW - r.since_ns / 1e9 >= STALL and left & set(r.group.ranks)]
    found = due(watch, *waiting)
    assert bool(found) == bool(long)
    for name in found:
        group = next(group for group in GROUPS if group.name == name)
        assert left.intersection(group.ranks)
