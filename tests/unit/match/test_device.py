"""Host or device: counts show whether a rank does not issue, or does not complete what it issued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from otel_fr.match import (
    Call,
    CallState,
    Category,
    Ending,
    Evidence,
    Finding,
    Group,
    Progress,
    Rank,
    Signature,
    diagnose,
    open_questions,
)
from tests.support.evidence import BROADCAST, LONG, SUM, WINDOW, call, judge, rank, verdict, world
from tests.support.verdicts import causes

WORLD = world(4)
TP = Group("tp", "1", "tp", (0, 1))
Counts = Mapping[int, Mapping[str, tuple[int, int]]]
GATHER = Signature("all_gather_into_tensor", ((4,),), ((8,),), ("Float",), ("Float",))


def waits(rank: int, number: int, group: Group, signature: Signature, age: float | None = None) -> Call:
    record = number if group is TP else 1000 + number
    return call(rank, number, signature=signature, group=group, record=record, age=age)


def job(calls: list[Call], counts: Counts, idle: float | None = None) -> list[Finding]:
    """``counts``: rank -> group -> (enqueued, completed), as PyTorch's recorder reports them."""
    return judge(calls, [rank(r, counts=own, idle=idle) for r, own in counts.items()], (TP, WORLD), 4)


COUNTS: Counts = {
    0: {"tp": (20, 12), "w": (7, 6)},
    1: {"tp": (20, 18), "w": (7, 6)},
    2: {"w": (7, 6)},
    3: {"w": (7, 6)},
}


def everybody(age: float | None = None) -> list[Call]:
    open_in_tp = [waits(0, n, TP, GATHER, age) for n in range(13, 21)] + [
        waits(1, n, TP, GATHER, age) for n in (19, 20)
    ]
    return open_in_tp + [waits(rank, 7, WORLD, SUM, age) for rank in range(4)]


def test_a_rank_that_does_not_complete_what_its_peers_completed_is_stuck_on_the_device() -> None:
    found = job(everybody(), COUNTS)
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (0,), "device")
    assert (cause.group, cause.sequence_id) == (TP, 13)
    assert cause.waiting_ranks == (1, 2, 3)


def test_completing_later_than_others_is_lag_while_no_rank_waits_for_it() -> None:
    assert job([waits(0, n, TP, GATHER) for n in (19, 20)], {0: {"tp": (20, 18)}, 1: {"tp": (20, 20)}}) == []


def test_a_call_in_flight_for_long_that_all_others_completed_is_stuck_although_no_rank_waits_for_it() -> None:
    counts = {0: {"tp": (20, 19)}, 1: {"tp": (20, 20)}}
    assert job([waits(0, 20, TP, GATHER, age=0.5)], counts, idle=9.0) == []
    (cause,) = job([waits(0, 20, TP, GATHER, age=9.0)], counts, idle=9.0)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (0,), "device")


@pytest.mark.parametrize(("done", "stuck"), [(19, (0,)), (20, ())])
def test_a_rank_that_ended_well_did_its_part_of_what_others_completed(done: int, stuck: tuple[int, ...]) -> None:
    """Its monitor does not see what its device completes after the program's last line."""
    calls = [waits(0, number, TP, GATHER, age=9.0) for number in (19, 20)]
    ended = rank(0, counts={"tp": (20, 18)}, ending=Ending.CLEAN, ended_for=9.0)
    found = causes(judge(calls, [ended, rank(1, counts={"tp": (20, done)})], (TP, WORLD), 4))
    assert tuple(culprit for one in found for culprit in one.culprit_ranks) == stuck


def test_a_rank_that_waited_long_for_a_late_one_is_not_stuck_when_that_one_has_come() -> None:
    """The others' reports, which show the collective completed, came before its own."""
    counts = {0: {"tp": (20, 19)}, 1: {"tp": (20, 20)}}
    assert job([waits(0, 20, TP, GATHER, age=9.0)], counts, idle=0.3) == []
    next_call = [waits(0, 21, TP, GATHER, age=9.0), waits(1, 21, TP, GATHER, age=0.3)]
    counts = {0: {"tp": (21, 19)}, 1: {"tp": (21, 20)}}
    assert job([waits(0, 20, TP, GATHER, age=9.0), *next_call], counts, idle=0.3) == []


def test_the_last_report_of_a_rank_that_has_since_completed_far_more_accuses_it_of_nothing() -> None:
    """Its later reports are on their way, or lost: its peer could not complete number 400 without it."""
    calls = [waits(0, n, TP, GATHER, age=9.0) for n in (19, 20)]
    assert job(calls, {0: {"tp": (20, 18)}, 1: {"tp": (400, 400)}}, idle=9.0) == []
    calls.append(waits(1, 401, TP, GATHER, age=0.5))
    assert job(calls, {0: {"tp": (20, 18)}, 1: {"tp": (401, 400)}}, idle=9.0) == []


def test_an_old_report_accuses_of_nothing_where_one_of_the_later_calls_needed_every_rank() -> None:
    root = BROADCAST._replace(root=0)

    def done(rank: int, number: int, signature: Signature) -> Call:
        return replace(waits(rank, number, WORLD, signature), state=CallState.COMPLETED)

    counts = {rank: {"w": (10, 9)} for rank in (0, 1, 3)} | {2: {"w": (6, 5)}}
    calls = [waits(2, 6, WORLD, SUM, age=9.0), *(waits(rank, 10, WORLD, SUM, age=3.0) for rank in (0, 1, 3))]
    only_broadcasts = [done(rank, number, root) for rank in (0, 1, 3) for number in (7, 8, 9)]
    (cause,) = causes(job(calls + only_broadcasts, counts))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_STUCK, (2,))
    with_sums = [done(rank, number, SUM if number == 8 else root) for rank in (0, 1, 3) for number in (7, 8, 9)]
    assert not any(finding.category is Category.RANK_STUCK for finding in job(calls + with_sums, counts))


def test_without_timing_a_rank_that_completes_calls_one_by_one_is_late_in_none() -> None:
    """A backlog, such as after a rank was stopped: each call is older than the window when it completes."""
    calls = [replace(waits(0, 20, TP, GATHER, age=9.0), queued=None)]
    ranks = [rank(0, counts={"tp": (30, 19)}, idle=0.5), rank(1, counts={"tp": (30, 25)})]
    assert judge(calls, ranks, (TP, WORLD), 4) == []
    ranks[0].idle = 9.0
    (cause,) = causes(judge(calls, ranks, (TP, WORLD), 4))
    assert (cause.culprit_ranks, cause.stuck_on) == ((0,), "device")


def test_one_call_of_lag_between_two_files_is_no_fault() -> None:
    counts = {**COUNTS, 0: {"tp": (20, 17), "w": (7, 6)}}
    assert job([c for c in everybody() if c.rank or c.group == "w" or c.sequence_id >= 18], counts) == []


def test_lag_is_distinguished_from_a_stall_by_age_where_it_is_known() -> None:
    assert job(everybody(age=0.5), COUNTS) == []
    assert [f.stuck_on for f in job(everybody(age=5.0), COUNTS) if f.caused_by is None] == ["device"]


def test_a_rank_that_has_not_enqueued_what_its_peers_wait_for_is_stuck_on_the_device_in_which_it_is_behind() -> None:
    """Its host waits for the device too: nobody waits in a call that it enqueued."""
    calls = [waits(0, n, TP, GATHER) for n in (17, 18)] + [waits(1, 19, TP, GATHER)]
    calls += [waits(rank, 7, WORLD, SUM) for rank in (2, 3)]
    counts = {
        0: {"tp": (18, 16), "w": (6, 6)},
        1: {"tp": (19, 18), "w": (6, 6)},
        2: {"w": (7, 6)},
        3: {"w": (7, 6)},
    }
    found = job(calls, counts)
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (0,), "device")
    assert (cause.group, cause.sequence_id, cause.waiting_ranks) == (TP, 17, (1, 2, 3))
    assert [f for f in found if f.caused_by is None] == [cause]
    one = [call for call in calls if (call.rank, call.sequence_id) != (0, 17)]
    (cause,) = causes(job(one, {**counts, 0: {"tp": (18, 17), "w": (6, 6)}}))
    assert (cause.culprit_ranks, cause.sequence_id) == ((0,), 18), "one call is enough: it is not lag of a running job"


def test_two_devices_in_one_group_are_two_culprits() -> None:
    calls = [waits(rank, n, WORLD, SUM) for rank, last in ((0, 4), (1, 2)) for n in range(last, 7)]
    calls += [waits(rank, 7, WORLD, SUM) for rank in (2, 3)]
    found = job(calls, {0: {"w": (6, 3)}, 1: {"w": (6, 1)}, 2: {"w": (7, 6)}, 3: {"w": (7, 6)}})
    assert [(f.culprit_ranks, f.stuck_on) for f in causes(found)] == [((0,), "device"), ((1,), "device")]


def test_of_a_broadcast_all_others_must_have_completed_it_and_want_the_rank_elsewhere() -> None:
    broadcast = BROADCAST._replace(root=1)
    calls = [waits(0, 6, WORLD, broadcast), *(waits(rank, 7, WORLD, SUM) for rank in (1, 2, 3))]
    counts = {0: {"w": (6, 5)}, 1: {"w": (7, 6)}, 2: {"w": (7, 6)}, 3: {"w": (7, 6)}}
    (cause,) = causes(job(calls, counts))
    assert (cause.culprit_ranks, cause.sequence_id, cause.stuck_on) == ((0,), 6, "device")
    calls.append(waits(3, 6, WORLD, broadcast))
    assert [f for f in job(calls, {**counts, 3: {"w": (7, 5)}}) if f.stuck_on == "device"] == [], "on its way"


def test_a_root_that_completes_its_broadcast_early_proves_nothing_about_the_others() -> None:
    broadcast = BROADCAST._replace(root=1)
    calls = [waits(0, n, TP, broadcast) for n in range(13, 21)] + [waits(rank, 7, WORLD, SUM) for rank in range(4)]
    assert [f for f in job(calls, COUNTS) if f.stuck_on == "device"] == []


def test_a_rank_that_completed_all_it_issued_is_blocked_on_the_host() -> None:
    calls = [waits(1, n, TP, GATHER) for n in (19, 20)] + [waits(rank, 7, WORLD, SUM) for rank in (1, 2, 3)]
    counts = {**COUNTS, 0: {"tp": (18, 18), "w": (6, 6)}}
    found = job(calls, counts)
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (0,), "host")
    assert (cause.group, cause.sequence_id) == (TP, 19), "the first call that it did not come to"


def test_what_the_files_do_not_show_is_stated_and_not_guessed() -> None:
    calls = [waits(rank, 7, WORLD, SUM) for rank in range(4)]
    evidence = Evidence(
        groups={"w": WORLD},
        calls=calls,
        ranks={r: Rank(r, progress={"w": Progress(7, 6)}) for r in range(4)},
        window=2.0,
        world_size=4,
    )
    assert diagnose(evidence) == []
    (question,) = open_questions(evidence)
    assert "all members joined all_reduce number 7" in question
    assert "the evidence does not show whether it is blocked" in question
    moving = Evidence(
        groups={"w": WORLD}, calls=[c for c in calls if c.rank], ranks=evidence.ranks, window=2.0, world_size=4
    )
    assert open_questions(moving) == [], "a member that has not joined is a matter for the verdict"


@pytest.mark.parametrize(("still", "is_named"), [(WINDOW + 1.0, False), (LONG, True)])
def test_while_nobody_waits_what_a_recorder_said_may_be_old(still: float, is_named: bool) -> None:
    """All have made their last call, which the others' recorders have shown to end."""
    ranks = [rank(r, 7, 6 if r == 1 else 7, idle=still) for r in range(3)]
    assert bool(verdict([call(1, 7, age=still)], ranks)) is is_named
