"""Ranks that a watchdog aborts while they wait: the fault that they waited for stays the verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from signal import SIGABRT, SIGKILL, SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Group, Rank
from otel_fr.match.facts.calls import stragglers
from tests.support.evidence import MAX, SUM, blamed, call, cause, message, rank, verdict
from tests.support.verdicts import causes

PENDING = [CallState.IN_FLIGHT, CallState.UNKNOWN]


def aborted(number: int, reached: int, **more: Any) -> Rank:
    return rank(number, reached, reached - 1, ending=Ending.KILLED, signal=SIGABRT, **more)


MISSING = {
    "alive": rank(1, 4, site="train.py:9 load"),
    "stopped by its launcher": rank(1, 4, ending=Ending.KILLED, signal=SIGTERM, site="train.py:9 load"),
    "silent": Rank(1, ending=Ending.UNKNOWN, complete=False),
    "ended early": rank(1, 4, ending=Ending.CLEAN),
}


@pytest.mark.parametrize("state", PENDING)
@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("victims", [(0,), (0, 2)])
def test_a_rank_that_a_watchdog_aborts_while_it_waits_is_a_victim(
    state: CallState, missing: str, victims: tuple[int, ...]
) -> None:
    peers = [aborted(r, 5) if r in victims else rank(r, 5, 4) for r in (0, 2)]
    found = cause([call(0, 5, state), call(2, 5, state)], [*peers, MISSING[missing]])
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (1,), (0, 2))
    assert found.sequence_id == 5
    assert set(victims) <= set(found.ended_ranks)


@pytest.mark.parametrize("victims", [(0,), (0, 2)])
def test_a_rank_that_comes_between_the_timeout_and_the_abort_is_late(victims: tuple[int, ...]) -> None:
    """It completes the call, with 9 s for a timeout of 6 s, and then the watchdogs end those that waited."""
    waited = [call(r, 5, CallState.COMPLETED, timeout=6.0, duration=8.9, gap=0.0) for r in (0, 2)]
    late = call(1, 5, CallState.COMPLETED, timeout=6.0, duration=0.1, gap=8.8)
    peers = [replace(aborted(r, 5) if r in victims else rank(r, 5), progress={}) for r in (0, 2)]
    found = cause([*waited, late], [*peers, rank(1, 5)])
    assert (found.category, found.culprit_ranks, found.ended_ranks) == (Category.STRAGGLER, (1,), victims)


def test_whether_a_rank_was_late_is_found_at_once_while_the_ranks_of_a_large_job_are_aborted() -> None:
    calls = [call(r, age=650.0, timeout=600.0, gap=0.1) for r in range(8_000)]
    begun = time.process_time()
    assert stragglers(calls, range(4_000)) == []
    assert time.process_time() - begun < 2


def test_an_exit_by_the_program_s_main_thread_is_its_own_fault() -> None:
    gone = rank(0, 5, 4, ending=Ending.RAISED, exit_code=1, exiting=True)
    assert blamed([call(0), call(2)], [gone, rank(1, 4), rank(2, 5, 4)]) == [(Category.RANK_DEAD, (0,))]


def test_an_exception_of_the_rank_itself_is_its_own_fault_however_long_it_waited() -> None:
    raised = rank(0, 5, 4, ending=Ending.RAISED, exception="ValueError: bad sample")
    assert blamed([call(0)], [raised, rank(1, 4), rank(2, 4)]) == [(Category.RANK_DEAD, (0,))]


@pytest.mark.parametrize("state", PENDING)
@pytest.mark.parametrize(
    ("signal", "age", "idle"),
    [(SIGKILL, 9.0, 9.0), (SIGABRT, 1.0, 9.0), (SIGABRT, 9.0, 0.5)],
    ids=["killed", "aborted before the window", "waited for a rank that moves"],
)
def test_a_rank_whose_end_its_wait_does_not_explain_is_dead(
    state: CallState, signal: int, age: float, idle: float
) -> None:
    dead = rank(0, 5, 4, ending=Ending.KILLED, signal=signal)
    assert blamed([call(0, 5, state, age=age)], [dead, rank(1, 4, idle=idle), rank(2, 4, idle=idle)]) == [
        (Category.RANK_DEAD, (0,))
    ]


def test_a_rank_aborted_while_it_waits_for_a_dead_rank_is_a_victim_of_that() -> None:
    dead = rank(1, 4, ending=Ending.KILLED, signal=SIGKILL)
    assert blamed([call(0), call(2)], [aborted(0, 5), dead, aborted(2, 5)]) == [(Category.RANK_DEAD, (1,))]


def test_ranks_that_wait_for_an_aborted_rank_wait_for_the_culprit() -> None:
    """Rank 2 waits in a pair, and in the next call of the world, for rank 0, which was aborted."""
    pair = Group("p", "1", "pair", (0, 2))
    calls = [call(0), call(2, 1, group=pair, record=50), call(2)]
    other = rank(2, 5, 4, counts={"p": (1, 0)})
    findings = verdict(calls, [aborted(0, 5), rank(1, 4), other], pair)
    (found,) = causes(findings)
    assert (found.category, found.culprit_ranks, found.sequence_id) == (Category.MISSING_RANK, (1,), 5)
    assert [f.group.id for f in findings if f.caused_by == found.key and f.group is not None] == ["p"]


def test_a_chain_of_aborted_ranks_leads_to_its_end() -> None:
    pair = Group("p", "1", "pair", (1, 2))
    middle = rank(1, 4, counts={"p": (1, 0)}, ending=Ending.KILLED, signal=SIGABRT)
    last = rank(2, 4, counts={"p": (0, 0)})
    found = cause([call(0), call(1, 1, group=pair, record=50)], [aborted(0, 5), middle, last], pair)
    assert (found.category, found.culprit_ranks, found.group) == (Category.MISSING_RANK, (2,), pair)


def test_ranks_aborted_in_a_deadlock_leave_a_deadlock() -> None:
    pair = Group("p", "1", "pair", (0, 1))
    first = aborted(0, 5, counts={"p": (0, 0)})
    second = rank(1, 4, counts={"p": (1, 0)}, ending=Ending.KILLED, signal=SIGABRT)
    calls = [call(0), call(1, 1, group=pair, record=50), call(2)]
    assert blamed(calls, [first, second, rank(2, 5)], pair) == [(Category.DEADLOCK, (0, 1))]


def test_a_rank_aborted_in_a_mismatched_call_of_unknown_state_leaves_the_mismatch() -> None:
    calls = [call(r, signature=MAX if r == 1 else SUM) for r in range(3)]
    calls[2] = replace(calls[2], state=CallState.UNKNOWN, queued=True)
    assert blamed(calls, [aborted(r, 5) for r in range(3)]) == [(Category.REDUCE_OP_MISMATCH, (1,))]


@pytest.mark.parametrize(("age", "is_stall"), [(600.2, True), (300.0, False)])
def test_an_abort_at_the_timeout_shows_that_a_call_of_unknown_state_had_not_ended(age: float, is_stall: bool) -> None:
    calls = [call(r, 5, CallState.UNKNOWN, age=age, timeout=600.0) for r in range(3)]
    found = cause(calls, [aborted(r, 5) for r in range(3)])
    expected = (Category.STALLED_COLLECTIVE, ()) if is_stall else (Category.RANK_DEAD, (0, 1, 2))
    assert (found.category, found.culprit_ranks) == expected


@pytest.mark.parametrize("last", [SIGABRT, SIGTERM], ids=["aborted", "ended by the launcher"])
def test_an_abort_at_the_timeout_shows_that_a_call_whose_begin_is_not_shown_had_not_ended(last: int) -> None:
    """NCCL without timing, and a timeout that is shorter than what such calls are waited for."""
    calls = [call(r, 5, queued=None, age=12.0, timeout=12.0) for r in range(3)]
    ranks = [aborted(0, 5), aborted(1, 5), replace(aborted(2, 5), signal=last)]
    assert blamed(calls, ranks) == [(Category.STALLED_COLLECTIVE, ())]


def test_a_rank_that_joins_after_its_peer_was_aborted_is_a_straggler() -> None:
    found = cause([call(0, 5, age=9.0), call(1, 5, age=0.4, gap=9.5), call(2)], [aborted(0, 5), rank(1, 5), rank(2, 5)])
    assert (found.category, found.culprit_ranks) == (Category.STRAGGLER, (1,))
    assert found.waiting_ranks == (0, 2), "the late rank is in the call too, but it is not the one that waits"


def test_a_process_that_does_not_run_and_is_killed_after_its_peers_were_aborted_was_stuck() -> None:
    killed = rank(1, 4, ending=Ending.KILLED, signal=SIGKILL, python_blocked=True)
    found = cause([call(0), call(2)], [aborted(0, 5), killed, aborted(2, 5)])
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_STUCK, (1,), "host")


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_a_device_that_blocks_others_stays_the_cause_whichever_rank_is_aborted(victims: tuple[int, ...]) -> None:
    """Rank 1 does not complete number 5, which its peers completed; these wait in number 6, which it has enqueued."""
    calls = [call(1), *(call(r, 6) for r in range(3))]
    done = {0: 5, 1: 4, 2: 5}
    ranks = [rank(r, 6, done[r]) for r in range(3)]
    for r in victims:
        ranks[r].ending, ranks[r].signal = Ending.KILLED, SIGABRT
    found = cause(calls, ranks)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.RANK_STUCK, (1,), "device")


def peers(error: str = "timeout") -> list[Call]:
    return [call(r, 5, CallState.FAILED, age=None, duration=6.0, error=error) for r in (0, 2)]


RAISED = [rank(r, 5, 4, ending=Ending.RAISED, exception="RuntimeError: Timed out") for r in (0, 2)]
EXITED: dict[str, Any] = {"ending": Ending.RAISED, "exit_code": 1}
KILLED: dict[str, Any] = {"ending": Ending.KILLED, "signal": SIGKILL}
SAID: dict[str, Any] = {"ending": Ending.RAISED, "exit_code": 128 + SIGTERM}


@pytest.mark.parametrize(("end", "idle"), [(EXITED, 6.2), (KILLED, 36.0), (SAID, 6.2), (SAID, 1.0)])
def test_a_rank_that_its_launcher_ended_after_the_others_had_given_up_is_missing(
    end: dict[str, Any], idle: float
) -> None:
    found = cause(peers(), [RAISED[0], rank(1, 4, idle=idle, site="train.py:9 load", **end), RAISED[1]])
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")
    assert found.call_sites[1] == "train.py:9 load"


def test_the_same_after_a_watchdog_had_aborted_the_others() -> None:
    killed = rank(1, 4, idle=39.5, **KILLED)
    assert blamed([call(0), call(2)], [aborted(0, 5), killed, aborted(2, 5)]) == [(Category.MISSING_RANK, (1,))]


@pytest.mark.parametrize(
    ("end", "idle", "error"),
    [
        (EXITED, 5.0, "timeout"),
        (KILLED, 6.2, "timeout"),
        (KILLED, 36.0, "collective_failed"),
        (EXITED, 36.0, "collective_failed"),
        ({**EXITED, "exception": "OSError: disk"}, 36.0, "timeout"),
        ({"ending": Ending.KILLED, "signal": 11}, 36.0, "timeout"),
    ],
)
def test_a_rank_that_may_have_ended_before_the_others_gave_up_is_dead(
    end: dict[str, Any], idle: float, error: str
) -> None:
    assert blamed(peers(error), [RAISED[0], rank(1, 4, idle=idle, **end), RAISED[1]]) == [(Category.RANK_DEAD, (1,))]


def test_a_rank_in_which_alone_a_collective_failed_is_the_culprit() -> None:
    """An exception of a signal handler in the call: torch's DataLoader raises one when a worker is killed."""
    killed_worker = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    raised = rank(1, 5, 4, ending=Ending.RAISED, exception=killed_worker)
    failed = call(1, 5, CallState.FAILED, age=None, duration=0.4, error="collective_failed")
    found = cause([call(0), failed, call(2)], [rank(0, 5, 4), raised, rank(2, 5, 4)])
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.RANK_DEAD, (1,), (0, 2))


def test_an_exception_that_ends_a_long_wait_from_within_is_a_victims() -> None:
    """The program's own limit: a handler of SIGALRM that raises while the main thread waits."""
    raised = rank(0, 5, 4, ending=Ending.RAISED, exception="TimeoutError: step took too long")
    failed = call(0, 5, CallState.FAILED, age=None, duration=6.0, error="collective_failed")
    found = cause([failed, call(2)], [raised, rank(1, 4), rank(2, 5, 4)])
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (1,), (0, 2))


LIMIT = "TimeoutError: the step took more than 6 s"


def limited(number: int, reached: int = 5, exception: str = LIMIT) -> Rank:
    return rank(number, reached, reached - 1, ending=Ending.RAISED, exception=exception, exiting=True)


@pytest.mark.parametrize("state", PENDING)
@pytest.mark.parametrize("missing", MISSING)
def test_an_exception_that_ends_a_long_wait_is_a_victims_if_others_wait_too(state: CallState, missing: str) -> None:
    """A handler of SIGALRM, or the program's own loop over ``Work.is_completed``: the call itself continues."""
    found = cause([call(0, 5, state), call(2, 5, state)], [limited(0), MISSING[missing], rank(2, 5, 4)])
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (1,), (0, 2))


def test_another_rank_may_wait_elsewhere_for_the_missing_one() -> None:
    pair = Group("p", "1", "pair", (1, 2))
    elsewhere, missing = rank(2, 4, counts={"p": (1, 0)}), rank(1, 4, counts={"p": (0, 0)})
    calls = [call(0), call(2, 1, group=pair, record=50)]
    assert blamed(calls, [limited(0), missing, elsewhere], pair) == [(Category.MISSING_RANK, (1,))]


@pytest.mark.parametrize(
    ("age", "other"), [(1.0, 9.0), (9.0, 1.0)], ids=["raised before the window", "others before the window"]
)
def test_an_exception_is_its_rank_s_own_fault_if_the_wait_was_short(age: float, other: float) -> None:
    calls = [call(0, 5, age=age), call(2, 5, age=other)]
    assert blamed(calls, [limited(0), rank(1, 4), rank(2, 5, 4)]) == [(Category.RANK_DEAD, (0,))]


def test_the_time_given_to_a_wait_is_over() -> None:
    """``Work.wait(timeout)`` raises, and the call stays in flight."""
    pair = Group("p", "1", "pair", (0, 1))
    waited = rank(0, counts={"p": (5, 4)}, ending=Ending.RAISED, exception="RuntimeError: Operation timed out!")
    assert blamed([call(0, 5, group=pair)], [waited, rank(1, counts={"p": (4, 4)})], pair) == [
        (Category.MISSING_RANK, (1,))
    ]


def test_an_exception_in_a_wait_for_a_rank_that_moves_is_its_rank_s_own_fault() -> None:
    assert blamed([call(0), call(2)], [limited(0), rank(1, 4, idle=0.5), rank(2, 5, 4)]) == [(Category.RANK_DEAD, (0,))]


@pytest.mark.parametrize(("idle", "is_stuck"), [(6.4, True), (0.3, False)])
def test_a_stuck_rank_whose_handler_of_sigterm_exits_without_an_error_was_stuck(idle: float, is_stuck: bool) -> None:
    """Slurm style: ``signal.signal(SIGTERM, lambda *_: sys.exit(0))``."""
    ended = rank(1, 4, idle=idle, ending=Ending.CLEAN, exiting=True, site="train.py:9 load")
    found = cause(peers(), [RAISED[0], ended, RAISED[1]])
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (1,))
    assert found.stuck_on == ("host" if is_stuck else None)


@pytest.mark.parametrize(
    ("exception", "is_dead"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed", True),
        ("RuntimeError: [gloo/tcp] Connection closed", False),
    ],
)
def test_an_exception_in_a_call_that_all_peers_completed_is_the_rank_s_own(exception: str, is_dead: bool) -> None:
    """The peers' next call fails because of it, and then they end as well."""
    ranks = [rank(r, 6, 5, ending=Ending.RAISED, exception="RuntimeError: [gloo] closed") for r in (0, 2)]
    raised = rank(1, 5, 4, ending=Ending.RAISED, exception=exception)
    calls = [
        *[call(r, 5, CallState.COMPLETED, age=None, duration=0.4) for r in (0, 2)],
        *[call(r, 6, CallState.FAILED, age=None, duration=0.4, error="collective_failed") for r in (0, 2)],
        call(1, 5, CallState.FAILED, age=None, duration=0.4, error="collective_failed"),
    ]
    found = causes(verdict(calls, [ranks[0], raised, ranks[1]]))
    dead = [finding.culprit_ranks for finding in found if finding.category is Category.RANK_DEAD]
    assert dead == ([(1,)] if is_dead else [])


CANCELLED: dict[str, Any] = {"ending": Ending.RAISED, "exception": "KeyboardInterrupt"}
CLOSED: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: [gloo] Connection closed by peer"}


def test_a_call_that_fails_because_the_job_is_cancelled_accuses_no_rank() -> None:
    """Ctrl-C: the ranks end one by one, and those that end first close their connections to the others."""
    failed = call(2, 5, CallState.FAILED, age=None, duration=1.2, error="collective_failed")
    ranks = [rank(0, 4, **CANCELLED), rank(1, 4, **CANCELLED), rank(2, 5, 4, **CANCELLED)]
    assert verdict([failed], ranks) == []


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        (CLOSED, {"duration": 5.0}),
        (CLOSED, {"duration": 1.2, "error": "timeout"}),
        (CANCELLED, {"duration": 5.0}),
        (CANCELLED, {"duration": 1.2, "error": "timeout"}),
    ],
)
def test_a_stopped_rank_that_others_had_waited_for_is_missing(ended: dict[str, Any], failed: dict[str, Any]) -> None:
    calls = [call(r, 5, CallState.FAILED, age=None, **{"error": "collective_failed", **failed}) for r in (0, 2)]
    ranks = [rank(0, 5, 4, **ended), rank(1, 4, **CANCELLED), rank(2, 5, 4, **ended)]
    assert blamed(calls, ranks) == [(Category.MISSING_RANK, (1,))]


@pytest.mark.parametrize("age", [0.2, 5.0], ids=["between the abort and the end", "at once after the abort"])
@pytest.mark.parametrize("state", PENDING)
def test_what_a_rank_calls_after_its_watchdog_has_aborted_its_wait_joins_nothing(state: CallState, age: float) -> None:
    """Half of a batch on NCCL: rank 0's send has no receive. Then its program calls what the others wait in."""
    waits = message(0, "send", 1, record=8, age=70.0, timeout=6.0)
    calls = [waits, call(0, 5, state, record=9, age=age, timeout=6.0)]
    calls += [call(other, 5, age=70.0, timeout=6.0) for other in (1, 2)]
    stopped = rank(1, 5, 4, ending=Ending.KILLED, signal=SIGTERM)
    found = cause(calls, [aborted(0, 5), stopped, aborted(2, 5)])
    assert (found.category, found.culprit_ranks) == (Category.UNMATCHED_P2P, (1,))
    assert set(found.ended_ranks) >= {0}
