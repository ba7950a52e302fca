"""What the collector keeps of a rank report (`otel_fr.rank_report`): interned calls and groups with their members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

from otel_fr import identity, rank_report
from otel_fr.match import CallState, Decision, Ending, Group, NewGroup, Overdue, Signature, ThreadException
from otel_fr.match.facts import overdue
from otel_fr.match.facts.endings import process_ending
from otel_fr.torch_recorder import ends_are_seen
from otel_fr_collector.jobs.calls import (
    MAX_GROUP_NAME,
    UNIT,
    Interner,
    RankCall,
    bare,
    state_of,
    stream_of,
    weight_of_texts,
)

MAX_GROUP_RANKS = 65_536
"""Members of one group."""

MAX_NEW_MEMBERS = 262_144
"""Members of all groups of one report whose lists are not cached; the others' members count as unknown. Reading as
many takes some 10 ms."""


def queued_of(given: rank_report.ReportedCall) -> bool | None:
    """As `Call.queued`. Without timing, PyTorch's recorder shows which calls are in flight, and not when they began."""
    is_open = state_of(given.state, given.error) is CallState.IN_FLIGHT and not given.is_posted
    return None if is_open and given.wait_s is None and ends_are_seen(given.backend) else given.is_queued


@dataclass(slots=True)
class KeptGroupProgress:
    """The rank's progress in one group. ``group`` has no ranks if the report does not name them.

    Attributes:
        messages: sequence number of the last send or receive enqueued.
        fingerprint: see `otel_fr.rank_report.ReportedGroup`.
    """

    group: Group
    enqueued: int = 0
    completed: int = 0
    is_destroyed: bool = False
    messages: int = 0
    fingerprint: Sequence[int] = ()


class KeptRange(NamedTuple):
    """Collectives of a rank that were asked for; see `otel_fr.rank_report.ReportedRange`."""

    group: str
    first: int
    last: int
    fingerprint: Sequence[int]
    calls: list[RankCall]


@dataclass(slots=True)
class KeptReport:
    """One rank's report; times in seconds, ``RankCall.enqueued_at`` on the clock of the ``now`` it was parsed with."""

    rank: int
    number: int
    stall: float = rank_report.DEFAULT_STALL_SECONDS
    groups: list[KeptGroupProgress] = field(default_factory=list)
    inflight: list[RankCall] = field(default_factory=list)
    inflight_more: int = 0
    failed: list[RankCall] = field(default_factory=list)
    last: RankCall | None = None
    idle: float | None = None
    stack: str = ""
    python_blocked: bool | None = None
    exception: str = ""
    exception_stack: str = ""
    exception_site: str = ""
    thread_exceptions: tuple[ThreadException, ...] = ()
    ending: Ending | None = None
    exit_code: int | None = None
    signal: int | None = None
    has_exited: bool = False
    is_exiting: bool = False
    exit_message: str = ""
    exit_site: str = ""
    site: str = ""
    file: str = ""
    hook_errors: int = 0
    records_creations: bool = False
    peer_timeout: float = rank_report.DEFAULT_PEER_TIMEOUT
    interval: float = rank_report.DEFAULT_INTERVAL
    overdue: tuple[Overdue, ...] = ()
    within: Overdue | None = None
    """As `Rank.within`; a brief report does not say it."""
    step: int | None = None
    ended_by_monitor: bool = False
    doing: str = ""
    addresses: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    kill_reason: str = ""
    ended_for_peer: bool = False
    running_here: str = ""
    """Interned: the monitors of one machine mostly say the same."""
    decisions: tuple[Decision, ...] = ()
    call_weight: int = 0
    """What its calls hold beyond one `UNIT` each."""
    is_plain: bool = False
    """It is brief and has no call: the next one like it changes counts only (`Run.add_brief`)."""
    is_brief: bool = False
    fetched: KeptRange | None = None
    is_sampled: bool = False
    """The rank sends the spans of some traces only."""

    def weight(self) -> int:
        """About how much memory it takes, in `UNIT`."""
        texts = (self.stack, self.exception_stack, self.exception, self.exit_message, self.file, self.site, self.doing)
        size = max(0, sum(map(getsizeof, texts)) - UNIT) + bytes_of_threads(self.thread_exceptions)
        size += sum(UNIT + getsizeof(item.name) for item in self.overdue) + len(self.kill_reason)
        size += UNIT * (len(self.decisions) + len(self.addresses) + len(self.unreached))
        return 1 + len(self.inflight) + len(self.failed) + self.call_weight + size // UNIT

    def cut(self, calls: int, length: int) -> None:
        """Keep so many calls, with the names of their operations only, and so many characters of each text."""
        self.inflight_more += len(self.inflight[calls:])
        self.inflight = [bare(call) for call in self.inflight[:calls]]
        self.failed = [bare(call) for call in self.failed[-calls:]]
        self.last = None if self.last is None else bare(self.last)
        self.call_weight = 0
        self.stack, self.exception_stack = self.stack[:length], self.exception_stack[:length]
        self.exception, self.thread_exceptions = self.exception[:length], ()
        self.overdue = tuple([item._replace(name=item.name[:length]) for item in self.overdue])
        self.within = None if self.within is None else self.within._replace(name=self.within.name[:length])
        self.exit_message, self.doing = self.exit_message[:length], self.doing[:length]
        self.kill_reason = self.kill_reason[:length]
        self.decisions = self.addresses = self.unreached = ()


def bytes_of_threads(given: Iterable[ThreadException]) -> int:
    """About how much memory exceptions of threads take."""
    return sum(UNIT + getsizeof(one.exception) + getsizeof(one.site) + getsizeof(one.thread) for one in given)


def parse_report(text: str, interner: Interner, *, now: float, wall: float) -> KeptReport:
    """Read a report.

    Args:
        now: the collector's monotonic clock at arrival; wall: the Unix time then.

    Raises:
        ValueError: as `otel_fr.rank_report.parse`, or a group has too many members.
    """
    return keep_report(rank_report.parse(text), interner, now=now, wall=wall)


def keep_report(given: rank_report.RankReport, interner: Interner, *, now: float, wall: float) -> KeptReport:
    """What is kept of a report that was read. Arguments and errors as for `parse_report`."""
    rank = given.rank
    calls = _CallReader(rank, interner, now, wall)
    report = KeptReport(
        rank,
        given.number,
        stall=given.stall_s,
        peer_timeout=given.peer_timeout,
        interval=given.interval_s,
        groups=_groups(given.groups, interner),
        inflight=[calls.read(call) for call in given.in_flight],
        inflight_more=given.in_flight_more,
        failed=[calls.read(call) for call in given.failed],
        last=None if given.last is None else calls.read(given.last),
        idle=given.idle_s,
        stack=given.stack,
        python_blocked=given.python_blocked,
        site=given.site,
        is_exiting=given.is_exiting,
        exit_message=given.exit_message,
        exit_site=given.exit_site,
        file=given.file,
        hook_errors=given.dropped.hook_errors if given.dropped is not None else 0,
        records_creations=given.records_creations,
        overdue=overdue.reported(given.activity) if given.activity else (),
        within=overdue.reported_within(given.activity) if given.activity else None,
        step=given.step,
        ended_by_monitor=given.on_hang == "kill",
        doing=given.doing,
        addresses=given.addresses,
        unreached=given.unreached,
        decisions=tuple(
            [
                Decision(
                    interner.text(item.name), interner.text(item.value), item.digest, item.first, item.last, item.step
                )
                for item in given.decisions
            ]
        ),
        running_here=interner.text(given.running_here) if given.running_here else "",
        call_weight=calls.weight,
        thread_exceptions=tuple(
            [ThreadException(item.thread, item.text, item.site) for item in given.thread_exceptions]
        ),
    )
    if given.fetched is not None:
        asked = given.fetched
        of_range = [calls.read(call) for call in asked.calls]
        report.fetched = KeptRange(asked.group, asked.first, asked.last, asked.fingerprint, of_range)
    if given.exception is not None:
        _add_exception(report, given.exception)
    if given.exit is not None:
        _add_exit(report, given.exit)
    report.is_brief, report.is_sampled = given.is_brief, given.sampled is not None
    report.is_plain = given.is_brief and has_counts_only(given)
    return report


def has_counts_only(given: rank_report.RankReport) -> bool:
    """It says nothing that `Run.add_brief` would not take."""
    said = (given.in_flight, given.in_flight_more, given.failed, given.last, given.exit, given.exception)
    texts = (given.stack, given.site, given.file, given.doing, given.exit_message, given.on_hang, given.decisions)
    more = (given.python_blocked, given.is_exiting, given.thread_exceptions, given.activity)
    return not any(said) and not any(texts) and more == (None, False, (), ())


def _add_exception(report: KeptReport, given: rank_report.ReportedException) -> None:
    report.exception = given.text
    report.exception_stack = given.stack
    report.exception_site = given.site
    report.ending = Ending.RAISED


def _add_exit(report: KeptReport, given: rank_report.ReportedExit) -> None:
    report.has_exited = True
    report.exit_code = given.code if given.is_known else None
    report.signal = given.signal or None
    report.kill_reason = given.reason
    report.ended_for_peer = given.is_for_peer
    report.ending = process_ending(
        signal=report.signal, exit_code=report.exit_code, clean=given.is_clean, exception=report.exception
    )


class MemberReader:
    """Reads the member lists of one report, or the one of a span."""

    def __init__(self, interner: Interner) -> None:
        self._members = interner.members
        self._left = MAX_NEW_MEMBERS

    def read(self, text: str) -> tuple[int, ...]:
        known = self._members.young.get(text)
        if known is None:
            known = self._members.get(text)
        if known is None:
            if self._left <= 0:
                return ()
            ranks = tuple(identity.decode_ranks(text, limit=MAX_GROUP_RANKS))
            self._left -= 16 + len(ranks)
            known = self._members.put(text, ranks)
        return known


def _groups(given: Iterable[rank_report.ReportedGroup], interner: Interner) -> list[KeptGroupProgress]:
    members = MemberReader(interner)
    found = []
    young = interner.groups.young
    for one in given:
        key = one.id, one.name, one.description, one.ranks
        group = young.get(key)
        if group is None:
            group = interner.groups.get(key) or _new_group(key, members, interner)
        found.append(
            KeptGroupProgress(group, one.enqueued, one.completed, one.is_destroyed, one.p2p_enqueued, one.fingerprint)
        )
    return found


def _new_group(key: tuple[str, str, str, str], members: MemberReader, interner: Interner) -> Group:
    id_, name, description, text = key
    ranks = members.read(text)
    group = Group(interner.text(id_), name[:MAX_GROUP_NAME], description[:MAX_GROUP_NAME], ranks)
    # Members for which there was no room in this report may be read in the next one.
    return interner.groups.put(key, group) if ranks or not text else group


class _CallReader:
    """Reads the calls of one report. ``weight``: what they hold beyond one `UNIT` each."""

    def __init__(self, rank: int, interner: Interner, now: float, wall: float) -> None:
        self._rank = rank
        self._interner = interner
        self._now = now
        self._wall = wall
        self._members = MemberReader(interner)
        self.weight = 0

    def _new_group(self, given: rank_report.ReportedCall, name: str) -> NewGroup:
        ranks = self._members.read(given.new_ranks)
        return NewGroup(name[:MAX_GROUP_NAME], given.new_description[:MAX_GROUP_NAME], ranks, given.awaits_all)

    def read(self, given: rank_report.ReportedCall) -> RankCall:
        interner = self._interner
        operation, peer, age, error = given.operation, given.peer, given.age_s, given.error
        signature, weight = interner.weighed(
            Signature(
                operation=operation,
                input_sizes=given.input_sizes,
                output_sizes=given.output_sizes,
                input_dtypes=given.input_dtypes,
                output_dtypes=given.output_dtypes,
                reduce_op=given.reduce_op,
                root=given.root,
                peer=peer,
                tag=given.tag,
                input_splits=given.input_splits,
                output_splits=given.output_splits,
                any_source=given.any_source or (operation == "recv" and peer is None),
                new_group=None if given.new_name is None else self._new_group(given, given.new_name),
            )
        )
        group, site = interner.text(given.group), interner.text(given.site)
        self.weight += weight + weight_of_texts(group, site, error)
        # A call that no thread waits for does not age.
        waited = None if given.is_posted else age if given.wait_s is None else given.wait_s
        return RankCall(
            rank=self._rank,
            record=given.record,
            group=group,
            stream=stream_of(given.stream, operation),
            sequence_id=given.sequence,
            signature=signature,
            state=state_of(given.state, error),
            pair_index=given.pair_index,
            site=site,
            error=error,
            timeout=None if given.timeout_ms is None else given.timeout_ms / 1_000,
            duration=given.duration_s,
            gap=given.gap_s,
            enqueued_wall=None if age is None else self._wall - age,
            enqueued_at=None if waited is None else self._now - waited,
            age=None if not given.is_posted else age if given.is_queued else 0.0,
            is_queued=queued_of(given),
            is_end_seen=ends_are_seen(given.backend),
        )
