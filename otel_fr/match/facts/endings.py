"""Separates ranks that ended by a fault of their own from ranks that ended because another had failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from signal import SIGKILL

from otel_fr.communication_errors import is_communication
from otel_fr.match.facts.calls import failed_at_once, gave_up, is_incomplete
from otel_fr.match.facts.instances import Instance, has_joined
from otel_fr.match.facts.known import Facts
from otel_fr.match.facts.mismatch import judge
from otel_fr.match.facts.ranks import (
    by_user,
    ended_for_peer,
    gave_up_at_store,
    is_device_error,
    may_be_cleared_away,
    was_stopped,
)
from otel_fr.match.facts.stops import KILL_GRACE, cleared_away, stopped_first, stopped_late, were_killed_together
from otel_fr.match.model import UNENDED, Call, CallState, Ending, Evidence, Group, Rank

TOGETHER = 2.0
"""Ranks that one signal killed within this many seconds ended together: a machine, a rack or a command did it."""


def ended_with(evidence: Evidence, ranks: Iterable[int], others: Iterable[int]) -> set[int]:
    """Return those of ``others`` that were killed by the same signal as one of ``ranks``, at about the same time."""
    times: dict[int | None, list[float]] = {}
    for info in (evidence.ranks[rank] for rank in ranks):
        if info.ending is Ending.KILLED and info.ended_for is not None:
            times.setdefault(info.signal, []).append(info.ended_for)
    spans = {signal: (min(ago) - TOGETHER, max(ago) + TOGETHER) for signal, ago in times.items()}
    found = set()
    for rank in others:
        info = evidence.ranks[rank]
        if info.ending is Ending.KILLED and info.ended_for is not None and info.signal in spans:
            least, most = spans[info.signal]
            found.update([rank] if least <= info.ended_for <= most else [])
    return found


def _failed_by_itself(info: Rank, calls: Iterable[Call]) -> bool:
    """True if the rank was killed, had an error of its own device, or raised for another reason than a failed call.

    After a failed call that it did not catch, its exception only shows another rank's fault. A rank that was stopped
    did not fail.
    """
    if info.ending is Ending.KILLED:
        return not was_stopped(info)
    if info.ending in (Ending.RAISED, Ending.GONE):
        if gave_up_at_store(info) or ended_for_peer(info) or was_stopped(info):
            return False
        failed = any(call.state is CallState.FAILED and not call.left for call in calls)
        failed |= info.has_gaps and is_communication(info.exception)  # its calls are not known
        return not failed or is_device_error(info.exception)
    return False


def _was_cleared_away(info: Rank) -> bool:
    """True if the rank's Python was blocked when it was killed: launchers kill ranks that do not react to SIGTERM.

    False if the kernel killed it for want of memory: filling the memory may have blocked its Python.
    """
    return info.python_blocked and may_be_cleared_away(info)


def _left_in_order(info: Rank, calls: Iterable[Call]) -> bool:
    """True if the rank exited with a status other than 0, after it had destroyed all its groups and nothing had failed.

    The status is the program's choice: Ray Train's workers, for example, end with status 1 on success.
    """
    return (
        info.ending is Ending.RAISED
        and not info.exception
        and bool(info.progress)
        and all(progress.destroyed for progress in info.progress.values())
        and not _open_calls(calls)
    )


def _awaited(facts: Facts, ranks: set[int]) -> set[int]:
    """Return the ``ranks`` that did not join a call in which others wait."""
    found: set[int] = set()
    for instance in facts.instances.values() if ranks else ():
        if any(instance.call(r).state is not CallState.COMPLETED for r in instance.calls):
            members = ranks.intersection(instance.members)
            found.update(r for r in members if facts.has_joined(instance, r) is False)
    return found


def raised_ranks(evidence: Evidence) -> set[int]:
    """Return the ranks that ended by an uncaught exception that does not come from a stop from outside."""
    raised = {r: info for r, info in evidence.ranks.items() if info.ending is Ending.RAISED and info.exception}
    return {r for r, info in raised.items() if not was_stopped(info)}


def _failed_alone(facts: Facts) -> set[int]:
    """Return ranks that raised in a collective that all members had joined and that failed on no other rank.

    It failed before its timeout. For example, a signal handler raised in the call: PyTorch's DataLoader does that when
    a worker is killed. A failure that a peer causes shows in the peer's end, or on more than one rank. If all peers
    have completed the call, their later end says nothing, but then the exception must not be one of communication.
    """
    evidence = facts.evidence
    raised = raised_ranks(evidence)
    unharmed = {r for r, info in evidence.ranks.items() if info.ending is Ending.RUNNING or was_stopped(info)}
    found: set[int] = set()
    for instance in facts.instances.values() if raised else ():
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
        if all(facts.has_joined(instance, other) for other in others):
            found.add(rank)
    return found


def _refused(facts: Facts) -> set[int]:
    """Return ranks that raised in a collective that their backend refused on all members at once: the program's fault.

    An exception of communication is not the program's fault: a peer or the network causes it. If the calls do not fit
    together, that is the fault.
    """
    evidence = facts.evidence
    raised = raised_ranks(evidence)
    found: set[int] = set()
    for instance in facts.instances.values() if raised else ():
        own = raised.intersection(instance.calls)
        if not own or instance.p2p or len(instance.calls) < len(instance.members):
            continue
        if not all(failed_at_once(instance.call(r), evidence.window) for r in instance.calls):
            continue
        infos = [evidence.ranks[r] for r in own]
        is_told = any(is_communication(info.exception) or ended_for_peer(info) for info in infos)
        if not is_told and judge(instance) is None:
            found |= own
    return found


def _outlasted(facts: Facts, candidates: set[int], aborted: frozenset[int]) -> set[int]:
    """Return the candidates that were away for so long that others had given up first: their launcher ended them.

    They were killed with SIGKILL after SIGTERM did not end them, or exited without an exception from a handler of
    SIGTERM. Each time is measured by one rank: how long a peer waited until its timeout, and how long the candidate was
    idle.
    """
    evidence = facts.evidence
    ended = {r for r in candidates if _may_be_stopped(evidence.ranks[r]) and evidence.ranks[r].idle is not None}
    found: set[int] = set()
    for instance in facts.instances.values() if ended else ():
        calls = [instance.call(r) for r in instance.calls]
        timeouts = [c.duration for c in calls if gave_up(c) and c.duration is not None]
        waits = timeouts + [c.age for c in calls if c.rank in aborted and c.age is not None]
        for r in ended.intersection(instance.members):
            info, idle = evidence.ranks[r], evidence.ranks[r].idle or 0.0
            if facts.has_joined(instance, r) is not False:
                continue
            if info.ending is Ending.KILLED:
                is_after = any(idle >= wait + KILL_GRACE for wait in waits)
            else:
                is_after = any(idle >= wait > 0 for wait in timeouts)
            if is_after:
                found.add(r)
    return found


def stayed_away(instance: Instance, info: Rank) -> bool:
    """True if the rank ended well, but had been in no call for as long as a peer waited here until its timeout.

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
    return [call for call in calls if is_incomplete(call) and not call.left]


def culprit_deaths(facts: Facts, excused: frozenset[int]) -> frozenset[int]:
    """Return the ranks whose death is a cause, not a consequence.

    A rank is a victim if it waited in a collective that another such rank never joined. (torchrun ends it with SIGTERM
    and after 30 s with SIGKILL; its own exception may show the signal.) If no rank failed otherwise, ranks that were
    stopped from outside while others continued are the cause, even if the others failed later because of it.

    Args:
        excused: ranks that were aborted because they waited (`otel_fr.match.graph.aborted`).
    """
    evidence, by_rank = facts.evidence, facts.by_rank
    if were_killed_together(evidence.ranks.values(), evidence.world_size):
        return frozenset()
    timed_out = bool(excused) or any(
        call.state is CallState.FAILED and call.error == "timeout" and not call.left for call in evidence.calls
    )
    candidates = {
        r
        for r, info in evidence.ranks.items()
        if r not in excused
        and _failed_by_itself(info, by_rank.get(r, ()))
        and not (timed_out and _was_cleared_away(info))
    }
    candidates |= (_failed_alone(facts) | _refused(facts)) - excused
    candidates -= _outlasted(facts, candidates, excused)
    candidates -= cleared_away(facts, candidates)
    left = {r for r in candidates if _left_in_order(evidence.ranks[r], by_rank.get(r, ()))}
    candidates -= left - _awaited(facts, left)
    candidates -= _reraised(facts, candidates)
    candidates -= _ended_for_others(facts, candidates)
    if not candidates:
        stopped = {r for r, info in evidence.ranks.items() if was_stopped(info)}
        if before := stopped_first(facts, stopped):
            return before
        others_ended = any(info.ending is not Ending.RUNNING for r, info in evidence.ranks.items() if r not in stopped)
        running = any(info.ending is Ending.RUNNING for info in evidence.ranks.values())
        if others_ended or not running:
            return frozenset()
        infos = [evidence.ranks[r] for r in stopped]
        is_of_all = len(stopped) > 1 or any(by_user(info) or info.ended_by_monitor for info in infos)
        return frozenset(stopped - stopped_late(facts, stopped) if is_of_all else stopped)
    waiting = {r for r in candidates if _open_calls(by_rank.get(r, ()))}
    first = candidates - waiting
    victims: set[int] = set()
    for instance in facts.instances.values():
        members = first.intersection(instance.members)
        if any(facts.has_joined(instance, r) is False for r in members):
            victims |= {r for r in waiting if r in instance.calls and _open_calls(instance.calls[r])}
    victims -= ended_with(evidence, first, victims)  # killed together with the first
    return frozenset(candidates - {r for r in victims if not is_device_error(evidence.ranks[r].exception)})


def _ended_for_others(facts: Facts, candidates: set[int]) -> set[int]:
    """Return the candidates that NCCL ended in a call because a peer had gone, if a member ended in another way.

    NCCL's watchdog aborts the process, or the caller gets an exception of communication (``ncclRemoteError``), while
    the call is in flight. If all candidates of the group ended in this way, it is unknown which was the first.
    """
    groups: dict[int, set[str]] = {}
    for r in candidates:
        info = facts.evidence.ranks[r]
        told = info.ending is Ending.RAISED and is_communication(info.exception)
        if (info.was_aborted or told) and not is_device_error(info.exception):
            groups[r] = {call.group for call in facts.by_rank.get(r, ()) if call.state in UNENDED}
    by_themselves = candidates - groups.keys()
    shared = {id_ for id_, group in facts.evidence.groups.items() if not by_themselves.isdisjoint(group.ranks)}
    return {r for r, own in groups.items() if own & shared}


_CHECKPOINT = re.compile(
    r"torch\.distributed\.checkpoint\.api\.CheckpointException: CheckpointException "
    r"ranks:dict_keys\(\[([0-9]{1,9}(?:, [0-9]{1,9})*)\]\)"
)
"""Exception of torch.distributed.checkpoint (api.py). If a rank fails in a step, all ranks of the step raise it. It
names the failed ranks by their ranks in the step's group."""


_SAME_MODEL = re.compile(
    r"RuntimeError: DDP expects same model across all ranks, but Rank ([0-9]{1,9}) has ([0-9]+) params, "
    r"while rank ([0-9]{1,9}) has inconsistent ([0-9]+) params"
)
"""Exception of DDP's constructor (reducer.cpp). All ranks raise it if one has another number of parameters. It
names the rank that raises it and the first rank that differs, by their ranks in the group."""


def _reraised(facts: Facts, candidates: Collection[int]) -> set[int]:
    """Return the ``candidates`` whose exceptions say that other candidates, not themselves, are at fault."""
    found: set[int] = set()
    models: dict[str, dict[int, str]] = {}
    for rank in candidates:
        group = _last_group(facts, rank)
        if group is None:
            continue
        text = facts.evidence.ranks[rank].exception
        if named := _CHECKPOINT.match(text):
            failed = _globally(group, named[1].split(","))
            if failed and rank not in failed and not failed.isdisjoint(candidates):
                found.add(rank)
        elif named := _SAME_MODEL.match(text):
            pairs = (([named[1]], named[2]), ([named[3]], named[4]))
            models.setdefault(group.id, {}).update((r, size) for one, size in pairs for r in _globally(group, one))
    for sizes in filter(None, models.values()):
        ((usual, how_many),) = Counter(sizes.values()).most_common(1)
        odd = {rank for rank, size in sizes.items() if size != usual}
        if 2 * how_many > len(sizes) and not odd.isdisjoint(candidates):
            found.update(sizes.keys() - odd)
    return found


def _last_group(facts: Facts, rank: int) -> Group | None:
    """Return the group of the rank's newest call."""
    last = facts.lasts.get(rank)
    return None if last is None else facts.evidence.groups.get(last.call.group)


def _globally(group: Group, texts: Iterable[str]) -> set[int]:
    """Convert ranks of a group to global ranks. Empty if the group lacks one of them."""
    numbers = [int(text) for text in texts]
    return {group.ranks[number] for number in numbers} if max(numbers) < len(group.ranks) else set()
