"""Ranks as sentences describe them: how they ended, where they are, since when they are silent, whom they reach."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from otel_fr.communication_errors import STOP_SIGNALS
from otel_fr.match.case import Case
from otel_fr.match.facts.calls import LastCall, is_posted
from otel_fr.match.facts.endings import stayed_away
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.machines import Machines, machines_by_address, names_text, slow_links
from otel_fr.match.facts.ranks import lacks_processor, runs_not, was_stopped
from otel_fr.match.facts.recording import DEFAULT_GROUP
from otel_fr.match.model import Call, CallState, Ending, Evidence, Group, Overdue, Progress, Rank
from otel_fr.match.texts.calls import call_text, group_of, instance_text
from otel_fr.presentation import count_text, duration_text, group_text, message_text, ranks_text, signal_text, verb
from otel_fr.stacks import loader_workers

MAX_ENDINGS = 4
"""Ranks whose ending or location a sentence states."""
MAX_THREADS = 2
"""Threads of a rank whose exceptions a sentence states: the last ones, which are the nearest to the fault."""
MAX_PEERS = 4
"""Peers named in details because they do not acknowledge what a rank sends."""


def ending_text(info: Rank) -> str:
    """How a rank ended, for a table: ``"killed by signal 9 (SIGKILL)"``, ``"raised ValueError: bad sample"``, ..."""
    if info.ending is Ending.KILLED:
        number = info.signal or 0
        how = "stopped from outside" if number in STOP_SIGNALS else "killed"
        why = f" from the kernel: {message_text(info.kill_reason)}" if info.kill_reason else ""
        return f"{how} by {signal_text(number)}{why}"
    if info.exception:
        return f"raised {message_text(info.exception)}"
    if info.ending is Ending.RAISED:
        how = f"exited with code {info.exit_code}" if info.exit_code is not None else "exited with an error"
        return how + (", because a peer had failed" if info.ended_for_peer else _message(info))
    if info.ending is Ending.CLEAN:
        return "ended without an error"
    if info.ending is Ending.GONE:
        return "ended in an unknown way"
    return exiting_text(info) if info.exiting and info.ending is Ending.RUNNING else "alive"


def exiting_text(info: Rank) -> str:
    """``"exiting (sys.exit: no samples left)"``."""
    return f"exiting{_message(info)}"


def _message(info: Rank) -> str:
    return f" (sys.exit: {message_text(info.exit_message)})" if info.exit_message else ""


def describe_ending(info: Rank, *, several: bool = False) -> str:
    """`ending_text` as the predicate of a sentence: ``"was killed by signal 9 (SIGKILL)"``, ``"is alive"``, ...

    Args:
        several: the sentence is about several ranks that ended like this one: ``"were killed ..."``.
    """
    text = ending_text(info)
    if info.ending is Ending.KILLED:
        return f"{'were' if several else 'was'} {text}"
    if info.exception or info.ending is Ending.RAISED:
        return text
    if info.ending in (Ending.CLEAN, Ending.GONE):
        return f"{'have' if several else 'has'} {text}"
    return f"{'are' if several else 'is'} {text}"


def where_texts(case: Case, rank: int, instance: Instance | None = None) -> list[str]:
    """Say whether a rank that has not joined lives, or how it ended, and where it is.

    Further texts follow, such as one about its last call.

    Args:
        instance: the instance that it has not joined.
    """
    evidence, info, last = case.evidence, case.evidence.ranks.get(rank), case.lasts.get(rank)
    if info is None or info.ending is Ending.UNKNOWN:
        return _silent_texts(evidence, rank, info, last)
    text = describe_ending(info)
    site = info.exception_site or info.site
    no_call = last is not None and not last.in_call and info.destroying is None and not _may_be_in(last.call)
    outside = f", in no {'collective' if instance is None or instance.p2p is None else 'call'}" if no_call else ""
    if info.ending is Ending.KILLED and was_stopped(info) and not info.python_blocked:
        exiting = f"{exiting_text(info)} and " if info.is_leaving else ""
        where = (f"still at {site}" if site else "alive") + (f"{outside}," if outside and not exiting else "")
        text = f"was {exiting}{where} when it {text}"
        site = ""
    progress = info.progress.get(instance.group.id) if instance is not None else None
    if instance is not None and stayed_away(instance, info):
        where = (f"still at {site}" if site else "alive") + (f"{outside}," if outside else "")
        text, site = f"was {where} when others gave up, and {text}", ""
    if progress is not None and progress.destroyed:
        text = (
            f"had left the group (it called destroy_process_group{_destroyed_at(evidence, info, progress)}) and {text}"
        )
    text = f"rank {rank} {text}"
    if info.python_blocked and info.ending is Ending.RUNNING:
        text += f", but its Python threads do not run{_blocked_text(info, 'is')}"
    elif info.python_blocked and info.ending is Ending.KILLED:
        text += f" after its Python threads had stopped running{_blocked_text(info, 'was')}"
    runs = info.ending is Ending.RUNNING and not info.exiting and not info.python_blocked
    if site:
        text = f"{text.removesuffix(' alive') if runs else text} at {site}"
    if runs and info.idle is not None and outside:
        text += outside
    elif info.destroying is not None and info.ending is Ending.RUNNING:
        text += f", in {call_text(evidence, info.destroying)}"
    texts = [text, *_doing_texts(info), *thread_texts(info)]
    if instance is not None and (behind := _behind_text(info, last, instance)):
        texts.append(behind)
    call = info.destroying or (last.call if last is not None else None)
    return [*texts, _last_call_text(evidence, info, call)] if call is not None else texts


def _doing_texts(info: Rank) -> list[str]:
    """Say what the kernel says about the rank, and where its DataLoader workers are, for which it may wait."""
    lacks = [starved_text([info])] if lacks_processor(info) else []
    if not info.doing or info.python_blocked or info.ending not in (Ending.RUNNING, Ending.KILLED):
        return lacks
    be = "is" if info.ending is Ending.RUNNING else "was"
    workers = [f"its DataLoader worker, process {pid}, {be} at {site}" for pid, site in loader_workers(info.stack)]
    return [f"it {be} {message_text(info.doing)}", *lacks, *workers]


def starved_text(infos: Sequence[Rank]) -> str:
    """``"its process has waited 4.8 of the last 5.0 s for a processor"``; of several ranks, the shortest wait."""
    waited, idle = min(info.starved for info in infos), max(info.idle or 0.0 for info in infos)
    whose = "its process has" if len(infos) == 1 else "each of their processes has"
    return f"{whose} waited {waited:.1f} of the last {duration_text(idle)} for a processor"


def _may_be_in(call: Call) -> bool:
    """True if the call has not ended, though it has not lasted long enough to count as a wait."""
    return call.state is CallState.IN_FLIGHT and not is_posted(call)


def _silent_texts(evidence: Evidence, rank: int, info: Rank | None, last: LastCall | None) -> list[str]:
    if info is None or info.heard_at is None:
        return [f"rank {rank} has sent no report and left no flight-recorder file, so its state is not known"]
    call = [] if last is None else [_last_call_text(evidence, info, last.call)]
    return [f"rank {rank} was last heard of at {moment_text(info.heard_at)}", *call]


def _destroyed_at(evidence: Evidence, info: Rank, progress: Progress) -> str:
    """Where a rank destroyed a group: this group alone, or together with all others."""
    site = progress.destroyed_at
    for group, own in () if site else info.progress.items():
        if own.destroyed_at and group in evidence.groups and evidence.groups[group].description == DEFAULT_GROUP:
            site = own.destroyed_at
    return f" at {site}" if site else ""


def _blocked_text(info: Rank, be: str) -> str:
    """Why the Python threads of a rank do not run."""
    if not info.doing:
        return f" (GIL held in C code, or the process {be} stopped)"
    held = "" if runs_not(info.doing) else " (GIL held in C code)"
    return f"{held}{';' if held else ':'} it {be} {message_text(info.doing)}"


def _behind_text(info: Rank, last: LastCall | None, instance: Instance) -> str:
    """How many calls the rank is behind in the instance's group, unless its last call shows that."""
    progress = info.progress.get(instance.group.id, Progress(0, 0))
    is_member = info.rank in instance.members or not instance.members
    if instance.stream != "collective" or info.rank in instance.calls or progress.enqueued is None or not is_member:
        return ""
    calls = instance.sequence_id - progress.enqueued
    if calls < 1 or (calls == 1 and last is not None and last.call.group == instance.group.id):
        return ""
    return f"it is {count_text(calls, 'call')} behind in {group_of(instance.group)}"


def _last_call_text(evidence: Evidence, info: Rank, call: Call) -> str:
    text = call_text(evidence, call)
    if call.state is CallState.IN_FLIGHT:
        ended = info.ending is not Ending.RUNNING
        if call.signature.any_source and call.signature.peer is None:
            return f"it {'waited' if ended else 'waits'} in {text}; which rank should send is not known"
        if is_posted(call):
            return f"its last call was {text}, which it did not wait for"
        return f"its last call, {text}, {'had' if ended else 'has'} not completed"
    return f"its last call was {text}" + (", which failed" if call.state is CallState.FAILED else "")


def thread_texts(info: Rank) -> list[str]:
    """``"its thread prefetch raised ValueError: bad sample at loader.py:8 read"``, for each thread that raised."""
    return [
        f"its thread {item.thread or '(no name)'} raised {message_text(item.exception)}"
        + (f" at {item.site}" if item.site else "")
        for item in info.thread_exceptions[-MAX_THREADS:]
    ]


def sharing_text(group: Group, threads: Sequence[str], ranks: Sequence[int]) -> str:
    """``"ranks 0, 1 are in calls of group 1 in the main thread and thread saver at once"``; "": the main thread."""
    named = [f"thread {name}" if name else "the main thread" for name in threads[:MAX_THREADS]]
    return (
        f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} in calls of group {group_text(group.name, group.description)} "
        f"in {' and '.join(named)} at once"
    )


def raised_texts(evidence: Evidence, ranks: Iterable[int]) -> list[str]:
    """``"rank 0 raised ValueError: ..."`` about the first of these ranks that raised, if any."""
    for rank in ranks:
        info = evidence.ranks.get(rank)
        if info is not None and info.exception:
            return [f"rank {rank} {describe_ending(info)}"]
    return []


def silence_text(case: Case, ranks: Sequence[int]) -> str:
    """``"n1 is lost: no reports from ranks 2, 3 since 14:03:12 UTC"``.

    If other ranks of their machines are heard of: ``"no reports from rank 3 (n1, local rank 1) since ..."``.
    """
    since = moment_text(max(case.evidence.ranks[rank].heard_at or 0.0 for rank in ranks))
    if not case.lost.keys() >= set(ranks):
        return f"no reports from {case.machines.named(ranks)} since {since}"
    hosts = {case.lost[rank] for rank in ranks}
    be = "is" if len(hosts) == 1 else "are"
    return f"{names_text(hosts)} {be} lost: no reports from {ranks_text(ranks)} since {since}"


def unreached_texts(evidence: Evidence, ranks: Iterable[int]) -> tuple[str, list[str]]:
    """``"hosts n2 and n3 do not reach each other"``, "" if no such hosts of these ranks are known; and details."""
    known = [evidence.ranks[rank] for rank in ranks if rank in evidence.ranks]
    unreached = [(info, peer) for info in known for peer in info.unreached]
    machine_of = machines_by_address(evidence.ranks.values()) if unreached else {}
    pairs: set[tuple[str, str]] = set()
    details: list[str] = []
    for info, peer in unreached:
        own, other = info.place.machine, machine_of.get(peer.rpartition(":")[0].strip("[]"), "")
        if own and other and own != other:
            pairs.add((min(own, other), max(own, other)))
        where = f" ({message_text(other)})" if other else ""
        details.append(f"{message_text(peer)}{where} has not acknowledged what rank {info.rank} sent to it")
    return _pairs_text(pairs), details[:MAX_PEERS]


def link_texts(evidence: Evidence) -> list[str]:
    """``"a round trip between hosts n0 and n2 takes 0.4 s"``, for the slowest."""
    return [
        f"a round trip between hosts {' and '.join(map(message_text, pair))} takes {duration_text(seconds)}"
        for pair, seconds in slow_links(list(evidence.ranks.values()))[:MAX_PEERS]
    ]


def _pairs_text(pairs: set[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    common = set.intersection(*map(set, pairs))
    if len(common) == 1:
        others = set().union(*pairs) - common
        return f"host {names_text(common)} does not reach {names_text(others)}"
    return f"hosts {names_text(' and '.join(pair) for pair in pairs)} do not reach each other"


def moment_text(seconds: float) -> str:
    """``"14:03:12 UTC"`` of a Unix time."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def host_text(evidence: Evidence, instance: Instance, culprits: Iterable[int]) -> str:
    """Say why ranks are known to be blocked on the host, or to have been until they ended."""
    ranks = list(culprits)
    ended = all(evidence.ranks[rank].ending is not Ending.RUNNING for rank in ranks)
    they = verb(ranks, "it", "they")
    text = f"{they} {verb(ranks, 'was', 'were') if ended else verb(ranks, 'is', 'are')} not blocked in a "
    return text + (f"collective: all {they} enqueued in this group completed" if instance.p2p is None else "call")


def overdue_value(item: Overdue) -> str:
    """``"section dataloading, limit 30.0 s"``, ``"heartbeat, limit 60.0 s"``."""
    name = f" {message_text(item.name)}" if item.name else ""
    return f"{item.kind}{name}, limit {duration_text(item.limit)}"


def within_text(rank: int, item: Overdue) -> str:
    """``"rank 0 has been in section save for 22.0 s, and may be for 300.0 s"``."""
    seconds, limit = duration_text(item.age), duration_text(item.limit)
    return f"rank {rank} has been in section {message_text(item.name)} for {seconds}, and may be for {limit}"


def overdue_text(overdue: Mapping[int, Overdue], ranks: Mapping[int, Rank], name: str) -> str:
    """``"rank 1 has been in section dataloading for 42.0 s, longer than its limit of 30.0 s"``.

    Args:
        overdue: rank -> what is overdue, the same section for all.
        name: of these ranks.
    """
    who, first = list(overdue), overdue[min(overdue)]
    ended = all(ranks[rank].ending is not Ending.RUNNING for rank in who)
    had = "had" if ended else verb(who, "has", "have")
    ages = [item.age for item in overdue.values()]
    seconds = ("up to " if len(who) > 1 else "") + duration_text(max(ages))
    if first.kind == "heartbeat":
        text = f"{name} {had} sent no heartbeat for {seconds}"
    elif first.kind == "outside":
        text = f"{name} {had} been outside all sections for {seconds}"
    else:
        text = f"{name} {had} been in section {message_text(first.name)} for {seconds}"
    text += f", longer than the limit of {duration_text(first.limit)}"
    if any(ranks[rank].ended_by_monitor for rank in who):
        text += f", when {verb(who, 'its monitor', 'their monitors')} ended {verb(who, 'it', 'them')}"
    return text


def endings_texts(ranks: list[int], evidence: Evidence, machines: Machines) -> list[str]:
    """Say how ranks ended, with details. Ranks that ended alike come together, in the first `MAX_ENDINGS` ways."""
    alike: dict[str, list[int]] = {}
    for rank in ranks:
        info = evidence.ranks[rank]
        alike.setdefault(f"{describe_ending(info)}{_raised_at(info)}", []).append(rank)
    shown = list(alike.values())[:MAX_ENDINGS]
    parts = []
    for name, own in zip(machines.each(shown), shown, strict=True):
        info = evidence.ranks[own[0]]
        parts.append(f"{name} {describe_ending(info, several=len(own) > 1)}{_raised_at(info)}")
    more = len(ranks) - sum(map(len, shown))
    if more:
        parts.append(f"and {more} more")
    detailed = [rank for own in shown for rank in own][:MAX_ENDINGS]
    details = (f"rank {rank}: {text}" for rank in detailed for text in thread_texts(evidence.ranks[rank]))
    return ["; ".join(parts), *details]


def _raised_at(info: Rank) -> str:
    return f" at {info.exception_site}" if info.exception_site and info.ending is Ending.RAISED else ""


def aborted_text(ranks: list[int], evidence: Evidence) -> str:
    """``"ranks 0, 2 were aborted by signal 6 (SIGABRT) while they waited"``; if ranks raised, the first text."""
    killed = [rank for rank in ranks if evidence.ranks[rank].ending is Ending.KILLED]
    raised = [rank for rank in ranks if rank not in killed]
    parts = []
    if killed:
        who = f"{ranks_text(killed)} {verb(killed, 'was', 'were')}"
        parts.append(f"{who} aborted by signal 6 (SIGABRT) while {verb(killed, 'it', 'they')} waited")
    if raised:
        others = "" if len(raised) == 1 else f" (likewise {ranks_text(raised[1:])})"
        parts.append(f"while it waited, rank {raised[0]} {describe_ending(evidence.ranks[raised[0]])}{others}")
    return "; ".join(parts)


def unexplained_texts(case: Case, instance: Instance, failed: list[int]) -> list[str]:
    """Describe a call whose failure ended ranks."""
    endings, *details = endings_texts(failed, case.evidence, case.machines)
    return [f"{instance_text(instance)} failed; the evidence does not show the cause: {endings}", *details]


def overrun_texts(case: Case, alike: Mapping[int, Overdue]) -> list[str]:
    """Describe ranks with the same overdue section or heartbeat, and say where they are."""
    shown = list(alike)[:MAX_ENDINGS]
    wheres = [where_texts(case, rank) for rank in shown]
    summary = f"{overdue_text(alike, case.evidence.ranks, case.machines.named(alike))}; {wheres[0].pop(0)}"
    return [summary, *wheres[0], *("; ".join(texts) for texts in wheres[1:])]
