"""Single situations whose verdict a user relies on, each built by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from otel_fr.match import (
    Call,
    CallState,
    Category,
    Ending,
    Group,
    Rank,
    Signature,
)
from tests.support.evidence import BARRIER, BROADCAST, SUM, WINDOW, blamed, call, judge, message, rank, verdict
from tests.support.evidence import cause as cause_of
from tests.support.verdicts import causes


def test_a_rank_killed_inside_a_collective_is_blamed_and_not_the_slow_one() -> None:
    found = verdict(
        [call(0, 5, CallState.FAILED, error="collective_failed"), call(1, 5, age=1.0)],
        [rank(0, 5), rank(1, 5, ending=Ending.KILLED, signal=9), rank(2, 4, idle=0.5)],
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.waiting_ranks) == (Category.RANK_DEAD, (1,), (0,))


def test_ranks_that_torchrun_ends_and_ranks_that_lost_their_connection_are_victims() -> None:
    found = verdict(
        [call(0, 5, CallState.FAILED, error="collective_failed"), call(2)],
        [
            rank(0, 5, ending=Ending.RAISED, exception="RuntimeError: Connection closed by peer"),
            rank(1, 4, ending=Ending.RAISED, exception="ValueError: bad sample 4711", exception_site="train.py:7 load"),
            rank(2, 5, ending=Ending.KILLED, signal=15),
        ],
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (1,))
    assert cause.call_sites[1] == "train.py:7 load"


def test_a_death_is_reported_before_any_rank_has_waited_for_long() -> None:
    found = verdict(
        [call(0, 5, age=0.1)], [rank(0, 5), rank(1, 4, ending=Ending.KILLED, signal=11), rank(2, 4, idle=0.1)]
    )
    assert [(f.category, f.culprit_ranks, f.sequence_id) for f in causes(found)] == [(Category.RANK_DEAD, (1,), 5)]


def test_a_rank_that_the_kernel_killed_for_its_memory_died_of_that() -> None:
    """Filling the memory had blocked its Python for longer than others wait."""
    why = "out of memory (cgroup limit 4.0 GiB)"
    killed = rank(1, 4, ending=Ending.KILLED, signal=9, python_blocked=True, kill_reason=why)
    assert blamed([call(0), call(2)], [rank(0, 5), killed, rank(2, 5)]) == [(Category.RANK_DEAD, (1,))]


def test_a_stopped_process_that_the_launcher_killed_in_the_end_was_stuck() -> None:
    """SIGTERM does not end a process that is stopped: torchrun kills it half a minute after its peers gave up."""
    killed = rank(1, 4, ending=Ending.KILLED, signal=9, python_blocked=True)
    peers = [rank(r, 5, ending=Ending.RAISED, exception="RuntimeError: Timed out") for r in (0, 2)]
    assert blamed([call(rank, 5, CallState.FAILED, error="timeout") for rank in (0, 2)], [*peers, killed]) == [
        (Category.RANK_STUCK, (1,))
    ]


def test_a_job_that_is_stopped_from_outside_is_no_fault() -> None:
    assert verdict([call(0, 5, age=0.1)], [rank(r, 5, ending=Ending.KILLED, signal=15) for r in range(3)]) == []


@pytest.mark.parametrize(
    "ended",
    [
        {"exception": "KeyboardInterrupt"},
        {"exception": "RuntimeError: interrupted (from KeyboardInterrupt)"},
        {"exit_code": 1, "exit_message": "while handling KeyboardInterrupt:"},
        {"exit_code": 1, "exit_message": "while handling RuntimeError: interrupted (from KeyboardInterrupt)"},
    ],
)
def test_ctrl_c_is_no_fault_and_hides_none(ended: dict[str, Any]) -> None:
    stopped = [rank(r, 5, 4, ending=Ending.RAISED, **ended) for r in (0, 2)]
    assert verdict([], [*stopped, rank(1, 4, ending=Ending.RAISED, **ended)]) == []
    calls = [call(r, 5, CallState.FAILED, error="collective_failed", duration=7.0) for r in (0, 2)]
    found = blamed(calls, [*stopped, rank(1, 4, ending=Ending.RAISED, **ended)])
    assert found == [(Category.MISSING_RANK, (1,))]


@pytest.mark.parametrize("waited", [WINDOW, WINDOW - 0.1])
@pytest.mark.parametrize("ending", [Ending.CLEAN, Ending.UNKNOWN])
def test_ranks_whose_call_failed_after_a_long_wait_had_waited_though_they_ended_well(
    ending: Ending, waited: float
) -> None:
    """The rank that did not come has ended, or left no file; its end closed the connections."""
    calls = [call(r, 5, CallState.FAILED, error="collective_failed", duration=waited) for r in (0, 2)]
    absent = rank(1, 4, ending=ending) if ending is Ending.CLEAN else rank(1, ending=ending, complete=False)
    found = blamed(calls, [rank(0, 5, ending=Ending.CLEAN), absent, rank(2, 5, ending=Ending.CLEAN)])
    assert found == ([(Category.MISSING_RANK, (1,))] if waited == WINDOW else [])


def test_one_rank_stopped_by_hand_while_the_others_wait_is_named() -> None:
    assert blamed([call(0), call(2)], [rank(0, 5), rank(1, 4, ending=Ending.KILLED, signal=15), rank(2, 5)]) == [
        (Category.RANK_DEAD, (1,))
    ]


def test_a_mismatch_explains_the_abort_it_causes() -> None:
    odd = SUM._replace(input_sizes=((5,),), output_sizes=((5,),))
    cause = cause_of(
        [call(0, 3, CallState.FAILED), call(1, 3, signature=odd), call(2, 3, CallState.FAILED)],
        [
            rank(0, 3, ending=Ending.RAISED),
            rank(1, 3, ending=Ending.KILLED, signal=6),
            rank(2, 3, ending=Ending.RAISED),
        ],
    )
    assert (cause.category, cause.culprit_ranks, cause.field) == (Category.SIZE_MISMATCH, (1,), "input_sizes")
    assert cause.values == {0: "[[4]]", 1: "[[5]]", 2: "[[4]]"}


def test_wrong_root_is_the_cause_of_the_barrier_that_hangs_behind_it() -> None:
    def bcast(rank: int, root: int, state: CallState) -> Call:
        return call(rank, 3, state, Signature("broadcast", ((4,),), ((4,),), ("Float",), ("Float",), root=root))

    found = verdict(
        [
            bcast(0, 0, CallState.IN_FLIGHT),
            bcast(1, 0, CallState.COMPLETED),
            bcast(2, 1, CallState.IN_FLIGHT),
            call(1, 4, signature=BARRIER),
        ],
        [rank(0, 3), rank(1, 4), rank(2, 3)],
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.ROOT_MISMATCH, (2,), 3)
    assert [f.caused_by for f in found if f is not cause] == [cause.key]


def test_waiting_for_a_rank_that_makes_progress_is_lag_and_raises_nothing() -> None:
    assert verdict([call(0), call(2)], [rank(0, 5), rank(1, 4, idle=0.3), rank(2, 5)]) == []


def test_waiting_shorter_than_the_window_raises_nothing() -> None:
    assert verdict([call(0, 5, age=1.0), call(2, 5, age=1.0)], [rank(0, 5), rank(1, 4), rank(2, 5)]) == []


def test_calls_that_a_wrapped_ring_has_lost_are_not_missing() -> None:
    found = verdict([call(0), call(2)], [rank(0, 5), rank(1, 9), rank(2, 5)])
    assert all(1 not in f.culprit_ranks for f in found)


def test_a_rank_that_fell_silent_is_named_before_one_that_never_was_heard() -> None:
    silent = rank(1, 4, ending=Ending.UNKNOWN, complete=False)
    unheard = Rank(2, ending=Ending.UNKNOWN, complete=False)
    cause = cause_of([call(0)], [rank(0, 5), silent, unheard])
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (1,))


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast"])
@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_call_in_the_last_report_of_a_rank_that_fell_silent_does_not_show_a_stuck_device(
    operation: str, is_waited_for: bool
) -> None:
    """Its monitor is stopped: the rank may have completed the call long ago, as its peers have, and be slow since."""
    signature = SUM if operation == "all_reduce" else BROADCAST._replace(root=0)
    before = [call(r, 5, CallState.COMPLETED, signature) for r in (0, 2)]
    after = [call(r, 6) for r in (0, 2)] if is_waited_for else []
    silent = rank(1, 5, 4, ending=Ending.UNKNOWN, complete=False)
    others = [rank(r, 5 + is_waited_for, 5) for r in (0, 2)]
    found = causes(verdict([*before, call(1, 5, signature=signature), *after], [*others, silent]))
    assert [cause.stuck_on for cause in found] != ["device"]
    assert [(f.category, f.culprit_ranks) for f in causes(found)] == [(Category.MISSING_RANK, (1,))] * is_waited_for


def test_one_member_that_has_just_arrived_means_the_collective_is_under_way() -> None:
    assert verdict([call(0), call(1, 5, age=0.2), call(2)], [rank(0, 5), rank(1, 5), rank(2, 5)]) == []


def test_a_rank_missing_in_a_small_group_is_the_cause_and_the_barrier_of_all_a_consequence() -> None:
    odd = Group("odd", "2", "odd", (1, 2))
    stuck, waiting = rank(2, 1, counts={"odd": (2, 2)}), rank(1, 1, counts={"odd": (3, 2)})
    found = verdict([call(1, 3, group=odd), call(0, 2, signature=BARRIER)], [rank(0, 2), waiting, stuck], odd)
    (cause,) = causes(found)
    assert (cause.culprit_ranks, cause.group, cause.sequence_id) == ((2,), odd, 3)
    (consequence,) = [f for f in found if f is not cause]
    assert (consequence.caused_by, consequence.operation) == (cause.key, "barrier")


def test_a_send_to_a_rank_that_receives_from_anybody_has_no_verdict() -> None:
    assert verdict([message(0, "send", 1), message(1, "recv", None)], [rank(0, 1), rank(1, 1), rank(2, 1)]) == []


def test_a_rank_in_a_receive_from_anybody_is_spared_while_a_member_that_waits_nowhere_is_blamed() -> None:
    receive = message(0, "recv", None)
    found = verdict([receive, call(1, 2, signature=BARRIER)], [rank(0, 1), rank(1, 2), rank(2, 1)])
    assert [(f.category, f.culprit_ranks, f.waiting_ranks) for f in causes(found)] == [
        (Category.MISSING_RANK, (2,), (1,))
    ]
    on_its_way = verdict([receive, call(1, 2, signature=BARRIER)], [rank(0, 1), rank(1, 2), rank(2, 1, idle=0.1)])
    assert on_its_way == []


def test_a_rank_in_a_message_whose_other_half_is_not_known_is_not_taken_for_idle() -> None:
    """Its peer is known, but older calls are lost: it waits, and for which message is not known."""
    send = message(0, "send", 2)
    send = dataclasses.replace(send, signature=send.signature._replace(any_source=True))
    found = verdict(
        [send, call(1, 2, signature=BARRIER), call(2, 2, signature=BARRIER)], [rank(0, 1), rank(1, 2), rank(2, 2)]
    )
    assert found == []
    found = verdict([send, call(1, 2, signature=BARRIER)], [rank(0, 1), rank(1, 2), rank(2, 1)])
    assert [(f.category, f.culprit_ranks) for f in causes(found)] == [(Category.MISSING_RANK, (2,))]
    just_sent = dataclasses.replace(send, age=0.1)
    found = verdict(
        [just_sent, call(1, 2, signature=BARRIER), call(2, 2, signature=BARRIER)], [rank(0, 1), rank(1, 2), rank(2, 2)]
    )
    assert found == [], "it may wait, for which the window has only begun"


def test_a_rank_in_the_middle_of_a_coalesced_batch_does_not_disagree_with_those_further_on() -> None:
    def part(rank: int, record: int, size: int) -> Call:
        signature = SUM._replace(input_sizes=((size,),), output_sizes=((size,),))
        return call(rank, 3, signature=signature, record=record)

    whole = [part(rank, number, size) for rank in (0, 2) for number, size in enumerate((1, 2, 3))]
    ranks = [rank(0, 3), rank(1, 3), rank(2, 3)]
    found = verdict([*whole, part(1, 0, 1), part(1, 1, 2)], ranks)
    assert [f.category for f in causes(found)] == [Category.STALLED_COLLECTIVE]
    found = verdict([*whole, part(1, 0, 1), part(1, 1, 2), part(1, 2, 4)], ranks)
    assert [(f.category, f.culprit_ranks) for f in causes(found)] == [(Category.SIZE_MISMATCH, (1,))]


def test_of_several_ranks_that_one_waited_for_in_vain_to_make_a_group_none_is_named() -> None:
    error = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//1//cpu//0/2"
    gave_up = rank(0, 2, ending=Ending.RAISED, exception=error)
    (cause,) = verdict([], [gave_up, rank(1, 2), rank(2, 2, ending=Ending.KILLED, signal=15)])
    assert (cause.category, cause.culprit_ranks) == (Category.STALLED_COLLECTIVE, ())


def test_a_member_whose_piece_does_not_fit_the_roots_list_is_odd_although_others_share_no_piece_with_it() -> None:
    def scatter(rank: int, own: int) -> Call:
        given = ((4,),) * 3 if rank == 0 else ()
        signature = Signature("scatter", given, ((own,),), ("Float",) * len(given), ("Float",), root=0)
        return call(rank, 3, CallState.COMPLETED, signature)

    ranks = [rank(r, 3) for r in range(3)]
    (cause,) = verdict([scatter(0, 4), scatter(1, 4), scatter(2, 5)], ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.SIZE_MISMATCH, (2,))
    (cause,) = verdict([scatter(0, 4), scatter(1, 5), scatter(2, 5)], ranks)
    assert (cause.category, cause.culprit_ranks) == (Category.SIZE_MISMATCH, (0,))


@pytest.mark.parametrize(("blocked", "culprits"), [(True, [(2,), (3,)]), (False, [(2,)])])
def test_a_rank_that_runs_no_python_is_named_although_others_wait_there_for_a_dead_one_that_is_named(
    blocked: bool, culprits: list[tuple[int, ...]]
) -> None:
    """Rank 1 waits for the dead rank 2 in a group of the two; rank 0 waits in the world for both, and for rank 3."""
    groups = [Group("p", "1", "pair", (1, 2)), Group("w", "0", "default_pg", (0, 1, 2, 3))]
    dead = rank(2, counts={"p": (4, 4), "w": (4, 4)}, ending=Ending.RAISED, exception="ValueError: x", ended_for=9.0)
    ranks = [rank(0, 5, 4), rank(1, counts={"p": (5, 4), "w": (4, 4)}), dead, rank(3, 4, idle=8.0)]
    ranks[3].python_blocked = blocked
    found = causes(judge([call(0, 5), call(1, 5, group="p")], ranks, groups, 4))
    assert sorted(one.culprit_ranks for one in found) == culprits
