"""Separates ranks that ended by a fault of their own from ranks that ended because another had failed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from signal import SIGABRT, SIGHUP, SIGINT, SIGKILL, SIGTERM

from otel_fr.communication_errors import STORE, is_communication, tells_of_stop
from otel_fr.match.facts.exceptions import is_device_error, reraised
from otel_fr.match.facts.instances import Instance, has_joined, is_waiting
from otel_fr.match.facts.joined import failed_at_once, gave_up
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank

STOP_SIGNALS = frozenset({SIGHUP, SIGINT, SIGTERM})
"""Signals with which launchers and users end a rank that is not at fault (torchrun sends SIGTERM to its peers)."""

_STOP_STATUSES = frozenset(128 + number for number in STOP_SIGNALS)
"""Exit statuses with which programs, as shells do, say which signal ended them."""

_UNENDED = (CallState.IN_FLIGHT, CallState.UNKNOWN)

KILL_GRACE = 2.0
"""Seconds that launchers wait at least between SIGTERM and SIGKILL; torchrun, Slurm and Kubernetes wait for 30 s."""


_PEER_EXCEPTION = "otel_fr.fault_tolerance.peers.PeerFailedError"
"""What otel-fr raises in a rank whose call it has ended for a failed peer."""


def process_ending(
    *, signal: int | None, exit_code: int | None, clean: bool, exception: str, exit_message: str
) -> Ending:
    """How a process ended.

    A signal after an uncaught exception of the main thread only ended what was left of it: the launcher's, or one at
    the interpreter's exit. A program that turns Ctrl-C into an exit without an error has not ended well.

    Args:
        signal: that ended it; None or 0: none did. exit_code: None: not known. clean: it said that it ends cleanly.
        exception: of the main thread; "": none. exit_message: as of `Rank`.
    """
    raised, stopped = bool(exception), tells_of_stop(exit_message)
    if signal:
        return Ending.RAISED if raised and not tells_of_stop(exception) else Ending.KILLED
    if exit_code is not None:
        return Ending.RAISED if exit_code or stopped else Ending.CLEAN
    if raised or stopped:
        return Ending.RAISED
    return Ending.CLEAN if clean else Ending.GONE


_NOT_RUNNING = ("stopped", "frozen", "a zombie", "dead")
"""Beginnings of `Rank.doing` of a process none of whose threads runs."""


def runs_not(doing: str) -> bool:
    """None of the threads of a process whose kernel says this of it runs."""
    return doing.startswith(_NOT_RUNNING)


def is_halted(info: Rank | None) -> bool:
    """None of its threads runs, or ran when it was killed: a signal, a debugger or a cgroup's freezer stopped it."""
    return (
        info is not None
        and info.python_blocked
        and info.ending in (Ending.RUNNING, Ending.KILLED)
        and runs_not(info.doing)
    )


def may_run(evidence: Evidence, rank: int) -> bool:
    """It is not known to have ended."""
    info = evidence.ranks.get(rank)
    return info is None or info.ending in (Ending.RUNNING, Ending.UNKNOWN)


def ended_for_peer(info: Rank) -> bool:
    """It ended because otel-fr had told it that a peer had failed: never a cause, whatever else it has done since."""
    return info.ended_for_peer or (info.ending is Ending.RAISED and info.exception.startswith(_PEER_EXCEPTION))


def gave_up_at_store(info: Rank) -> bool:
    """It ended because others did not arrive at the job's store: their fault, not its own."""
    return info.ending is Ending.RAISED and info.exception.startswith(STORE)


def was_stopped(info: Rank) -> bool:
    """It was ended by a launcher's or a user's signal, or by its monitor because it was overdue."""
    if info.ended_by_monitor:
        return info.ending in (Ending.KILLED, Ending.RAISED)
    if info.ending is Ending.KILLED:
        return info.signal in STOP_SIGNALS
    if info.ending is Ending.RAISED and not info.exception:
        return info.exit_code in _STOP_STATUSES or tells_of_stop(info.exit_message)
    return info.ending is Ending.RAISED and tells_of_stop(info.exception)


def _failed_by_itself(info: Rank, calls: Iterable[Call]) -> bool:
    """Killed, or raised without a failed call that it did not catch (its exception only shows another rank's fault),
    or by an error of its own device."""
    if info.ending is Ending.KILLED:
        return not was_stopped(info)
    if info.ending in (Ending.RAISED, Ending.GONE):
        if gave_up_at_store(info) or ended_for_peer(info):
            return False
        if was_stopped(info):
            return False
        failed = any(call.state is CallState.FAILED and not call.caught for call in calls)
        return not failed or is_device_error(info.exception)
    return False


def _was_cleared_away(info: Rank) -> bool:
    """Its Python was blocked when it was killed: launchers kill ranks that do not react to SIGTERM."""
    return info.python_blocked and info.ending is Ending.KILLED and info.signal == SIGKILL


def _left_in_order(info: Rank, calls: Iterable[Call]) -> bool:
    """It exited on its own with a status other than 0, after it had destroyed all its groups and nothing had failed.

    The status is the program's: Ray Train's workers, for example, end with status 1 on success.
    """
    return (
        info.ending is Ending.RAISED
        and not info.exception
        and bool(info.progress)
        and all(progress.destroyed for progress in info.progress.values())
        and not _open_calls(calls)
    )


def _awaited(evidence: Evidence, instances: Iterable[Instance], ranks: set[int]) -> set[int]:
    """Those of ``ranks`` that others wait for in a call that they did not join."""
    found: set[int] = set()
    for instance in instances if ranks else ():
        if any(instance.call(r).state is not CallState.COMPLETED for r in instance.calls):
            members = ranks.intersection(instance.members)
            found.update(r for r in members if has_joined(instance, r, evidence.ranks.get(r)) is False)
    return found


def raised_ranks(evidence: Evidence) -> set[int]:
    """Ranks that ended by an uncaught exception that does not come from a stop from outside."""
    raised = {r: info for r, info in evidence.ranks.items() if info.ending is Ending.RAISED and info.exception}
    return {r for r, info in raised.items() if not was_stopped(info)}


def _failed_alone(evidence: Evidence, instances: Iterable[Instance]) -> set[int]:
    """Ranks that raised in a collective that all members had joined and that failed on no other, before its timeout.

    An exception that a signal handler raises in the call looks so: PyTorch's DataLoader raises one when a worker is
    killed, for example. A failure that a peer causes shows in the peer's end, or on more than one rank. If all peers
    have completed the call, their later end says nothing, but then the exception must not be one of communication.
    """
    raised = raised_ranks(evidence)
    unharmed = {r for r, info in evidence.ranks.items() if info.ending is Ending.RUNNING or was_stopped(info)}
    found: set[int] = set()
    for instance in instances if raised else ():
        calls = [instance.call(r) for r in instance.calls]
        failed = [c for c in calls if c.state is CallState.FAILED]
        if len(failed) != 1 or gave_up(failed[0]) or instance.p2p:
            continue
        rank = failed[0].rank
        others = set(instance.members) - {rank}
        if rank not in raised or ended_for_peer(evidence.ranks[rank]):
            continue
        ended_well = len(instance.calls) == len(instance.members) and all(
            call.rank == rank or call.state is CallState.COMPLETED for call in calls
        )
        if not others <= unharmed and (not ended_well or is_communication(evidence.ranks[rank].exception)):
            continue
        if all(has_joined(instance, other, evidence.ranks[other]) for other in others):
            found.add(rank)
    return found


def _outlasted(
    evidence: Evidence, instances: Iterable[Instance], candidates: set[int], aborted: frozenset[int]
) -> set[int]:
    """Those that were away for so long that others had given up before they ended: their launcher ended them.

    Killed with SIGKILL after they had not ended by SIGTERM, or exited without an exception from a handler of SIGTERM.
    Each time is measured by one rank: how long a peer waited until its timeout, and how long the candidate was idle.
    """
    ended = {r for r in candidates if _may_be_stopped(evidence.ranks[r]) and evidence.ranks[r].idle is not None}
    found: set[int] = set()
    for instance in instances if ended else ():
        calls = [instance.call(r) for r in instance.calls]
        timeouts = [c.duration for c in calls if gave_up(c) and c.duration is not None]
        waits = timeouts + [c.age for c in calls if c.rank in aborted and c.age is not None]
        for r in ended.intersection(instance.members):
            info, idle = evidence.ranks[r], evidence.ranks[r].idle or 0.0
            if has_joined(instance, r, info) is not False:
                continue
            if info.ending is Ending.KILLED:
                is_after = any(idle >= wait + KILL_GRACE for wait in waits)
            else:
                is_after = any(idle >= wait > 0 for wait in timeouts)
            if is_after:
                found.add(r)
    return found


def stayed_away(instance: Instance, info: Rank) -> bool:
    """It ended well, but had been in no call for as long as a peer waited here until its timeout.

    So it did not end early: its launcher ended it, and a handler of SIGTERM exited without an error.
    """
    if info.ending is not Ending.CLEAN or info.idle is None or has_joined(instance, info.rank, info) is not False:
        return False
    calls = [instance.call(r) for r in instance.calls]
    return any(gave_up(c) and c.duration is not None and info.idle >= c.duration > 0 for c in calls)


def _may_be_stopped(info: Rank) -> bool:
    if info.ending is Ending.KILLED:
        return info.signal == SIGKILL
    return info.ending is Ending.RAISED and not info.exception


def _open_calls(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.state in (CallState.IN_FLIGHT, CallState.FAILED) and not call.caught]


def culprit_deaths(
    evidence: Evidence, instances: Collection[Instance], excused: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Ranks whose death is a cause, not a consequence.

    A rank that was waiting in a collective which another such rank never joined is a victim (torchrun ends it
    with SIGTERM and after 30 s with SIGKILL; its own exception may show the signal). If no rank failed otherwise, a
    single rank that was stopped from outside while others go on is the cause, also once these have failed for it.

    Args:
        excused: ranks that were aborted because they waited (`otel_fr.match.graph.aborted`).
    """
    by_rank: dict[int, list[Call]] = {}
    for call in evidence.calls:
        by_rank.setdefault(call.rank, []).append(call)
    timed_out = bool(excused) or any(
        call.state is CallState.FAILED and call.error == "timeout" and not call.caught for call in evidence.calls
    )
    candidates = {
        r
        for r, info in evidence.ranks.items()
        if r not in excused
        and _failed_by_itself(info, by_rank.get(r, ()))
        and not (timed_out and _was_cleared_away(info))
    }
    candidates |= _failed_alone(evidence, instances) - excused
    candidates -= _outlasted(evidence, instances, candidates, excused)
    left = {r for r in candidates if _left_in_order(evidence.ranks[r], by_rank.get(r, ()))}
    candidates -= left - _awaited(evidence, instances, left)
    candidates -= reraised(evidence, candidates, by_rank)
    candidates -= _ended_for_others(evidence, candidates, by_rank)
    if not candidates:
        stopped = {r for r, info in evidence.ranks.items() if was_stopped(info)}
        if before := _stopped_first(evidence, instances, stopped, by_rank):
            return before
        others_ended = any(info.ending is not Ending.RUNNING for r, info in evidence.ranks.items() if r not in stopped)
        running = any(info.ending is Ending.RUNNING for info in evidence.ranks.values())
        if others_ended or not running:
            return frozenset()
        return frozenset(stopped - _stopped_late(evidence, instances, stopped) if len(stopped) > 1 else stopped)
    waiting = {r for r in candidates if _open_calls(by_rank.get(r, ()))}
    first = candidates - waiting
    victims = set()
    for instance in instances:
        blamed = {r for r in first if r in instance.members and has_joined(instance, r, evidence.ranks.get(r)) is False}
        if blamed:
            victims |= {r for r in waiting if r in instance.calls and _open_calls(instance.calls[r])}
    return frozenset(candidates - {r for r in victims if not is_device_error(evidence.ranks[r].exception)})


def _ended_for_others(evidence: Evidence, candidates: set[int], by_rank: Mapping[int, list[Call]]) -> set[int]:
    """Those that ended in a call, as NCCL ends a rank soon after a peer has gone, where a member ended on its own.

    NCCL's watchdog aborts the process, or the caller gets an exception of communication (``ncclRemoteError``), while
    the call is in flight. Of ranks that ended in no other way, none is known to be the first.
    """
    groups: dict[int, set[str]] = {}
    for r in candidates:
        info = evidence.ranks[r]
        aborted = info.ending is Ending.KILLED and info.signal == SIGABRT
        told = info.ending is Ending.RAISED and is_communication(info.exception)
        if (aborted or told) and not is_device_error(info.exception):
            groups[r] = {call.group for call in by_rank.get(r, ()) if call.state in _UNENDED}
    by_themselves = candidates - groups.keys()
    shared = {id_ for id_, group in evidence.groups.items() if not by_themselves.isdisjoint(group.ranks)}
    return {r for r, own in groups.items() if own & shared}


def _stopped_first(
    evidence: Evidence, instances: Iterable[Instance], stopped: set[int], by_rank: Mapping[int, list[Call]]
) -> frozenset[int]:
    """Those of the stopped ranks that were stopped before their peers ended or failed, so not because of that."""
    last = {r: max(by_rank[r], key=lambda call: call.record) for r in stopped if by_rank.get(r)}
    found: set[int] = set()
    for instance in instances if stopped else ():
        first, until = _wait_times(instance, evidence.window)
        for r in last.keys() & set(instance.members) if until and not instance.p2p else ():
            idle = evidence.ranks[r].idle
            if idle is None or not _is_next(instance, last[r]):
                continue
            if idle < first + evidence.window and idle + evidence.window <= until:
                found.add(r)
        broken = _broken_by(evidence, instance)
        if broken in stopped:
            found.add(broken)
    return frozenset(found)


def _is_next(instance: Instance, last: Call) -> bool:
    """True if its rank, whose newest call this is, has completed the collective before and did not join this one."""
    is_next = instance.key[:2] == (last.group, last.stream) and instance.key[2] == last.sequence_id + 1
    return is_next and last.state is CallState.COMPLETED and last.rank not in instance.calls


def _wait_times(instance: Instance, window: float) -> tuple[float, float]:
    """When the first call was made that has lasted for the window, and until when the last has lasted or did.

    Seconds by each rank's own clock, from the end of its call before; infinity and 0 if there are no such calls.
    """
    first, until = math.inf, 0.0
    for call in (instance.call(r) for r in instance.calls):
        seconds = call.duration if call.state is CallState.FAILED else call.age
        if call.state is not CallState.COMPLETED and not call.caught and seconds is not None:
            gap = call.gap or 0.0
            until = max(until, gap + seconds)
            first = min(first, gap) if seconds >= window else first
    return first, until


def _stopped_late(evidence: Evidence, instances: Iterable[Instance], stopped: set[int]) -> set[int]:
    """Those of the stopped ranks for which others had waited for the window before, and those that had waited so.

    Whoever stops such a job may leave one rank that takes long to end.
    """
    found: set[int] = set()
    for instance in instances if stopped else ():
        first, _ = _wait_times(instance, evidence.window)
        if first == math.inf:
            continue
        absent = {r for r in instance.members if has_joined(instance, r, evidence.ranks.get(r)) is False}
        found.update(r for r in stopped & absent if (evidence.ranks[r].idle or 0.0) >= first + evidence.window)
        if absent:
            waiting = [r for r in stopped.intersection(instance.calls) if is_waiting(instance.call(r), evidence.window)]
            found.update(r for r in waiting if instance.call(r).age is not None)
    return found


def _broken_by(evidence: Evidence, instance: Instance) -> int | None:
    """The only member that has ended and did not join, if the call failed on others at once; None: not known.

    So a call fails if the end of a rank closes its connections. One of the others at least ended by that failure; the
    rest may go on, or may have been stopped later than that member, by each rank's own clock since the call before. A
    call that had lasted for the window may have waited for a rank that somebody stopped for just that reason.
    """
    if not any(_breaks_at_once(instance.call(r), evidence.window) for r in instance.calls):
        return None
    absent: list[int] = []
    raised: list[str] = []
    stopped_at: list[float | None] = []
    for r in instance.members:
        info = evidence.ranks.get(r)
        joined = has_joined(instance, r, info)
        if info is None or joined is None:
            return None
        if not joined and info.has_left(instance.group.id):
            return None  # its connections were closed when it destroyed the group, not when a rank ended
        if info.ending is Ending.RUNNING or (joined and info.ending is Ending.UNKNOWN):
            continue
        call = instance.call(r) if r in instance.calls else None
        if not joined:
            absent.append(r)
        elif call is not None and _breaks_at_once(call, evidence.window):
            raised.extend([] if was_stopped(info) else [info.exception])
        elif call is not None and was_stopped(info) and call.state is CallState.IN_FLIGHT:
            stopped_at.append(None if call.age is None or call.gap is None else call.gap + call.age)
        else:
            return None
    if len(absent) != 1 or not raised or not all(map(is_communication, raised)):
        return None
    idle = evidence.ranks[absent[0]].idle
    is_first = all(idle is not None and seconds is not None and idle < seconds for seconds in stopped_at)
    return absent[0] if is_first else None


def _breaks_at_once(call: Call, window: float) -> bool:
    return failed_at_once(call, window) and not call.caught
