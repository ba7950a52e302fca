"""Converts a rank report (`otel_fr.rank_report`) to what the collector keeps: interned calls, groups with members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from otel_fr import identity, rank_report
from otel_fr.match import CallState, Decision, Group, NewGroup, Overdue, Signature, ThreadException
from otel_fr.match.facts.ranks import reported, reported_within
from otel_fr.torch_recorder import ends_are_seen
from otel_fr_collector.jobs.calls import (
    MAX_GROUP_NAME,
    Interner,
    RankCall,
    state_of,
    stream_of,
    weight_of_texts,
)

MAX_NEW_MEMBERS = 262_144
"""Members that are read from those member lists of one report that are not cached. Further members stay unknown.
Reading this number takes some 10 ms."""


def queued_of(given: rank_report.ReportedCall) -> bool | None:
    """`Call.queued` of a reported call. Without timing, PyTorch's recorder does not show when calls in flight began."""
    is_open = state_of(given.state, given.error) is CallState.IN_FLIGHT and not given.is_posted
    return None if is_open and given.wait_s is None and ends_are_seen(given.backend) else given.is_queued


class KeptRange(NamedTuple):
    """Collectives of a rank that the collector requested; see `otel_fr.rank_report.sections.ReportedRange`."""

    group: str
    first: int
    last: int
    fingerprint: Sequence[int]
    calls: list[RankCall]


class Contents(NamedTuple):
    """The parts of a report besides its plain values. ``RankCall.enqueued_at`` is on the clock of ``now`` in `read`.

    Attributes:
        call_weight: weight of the calls beyond one `UNIT` each.
        within: as `Rank.within`; brief reports do not have it.
    """

    inflight: Sequence[RankCall] = ()
    failed: Sequence[RankCall] = ()
    last: RankCall | None = None
    fetched: KeptRange | None = None
    call_weight: int = 0
    overdue: tuple[Overdue, ...] = ()
    within: Overdue | None = None
    thread_exceptions: tuple[ThreadException, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def held(self) -> int:
        """Size of the contents, in `UNIT`."""
        return len(self.inflight) + len(self.failed) + 1 + self.call_weight


NOTHING: Final = Contents()


def read(given: rank_report.RankReport, interner: Interner, *, now: float, wall: float) -> Contents:
    """Read the parts of a report that are kept.

    Args:
        now: when the report was sent, on the collector's monotonic clock. wall: the Unix time then.

    Raises:
        ValueError: a group that a call creates has too many members.
    """
    calls = _CallReader(given.rank, interner, now, wall)
    asked, text = given.fetched, interner.text
    return Contents(
        inflight=[calls.read(call) for call in given.in_flight],
        failed=[calls.read(call) for call in given.failed],
        last=None if given.last is None else calls.read(given.last),
        fetched=None
        if asked is None
        else KeptRange(
            asked.group, asked.first, asked.last, asked.fingerprint, [calls.read(one) for one in asked.calls]
        ),
        call_weight=calls.weight,
        overdue=reported(given.activity) if given.activity else (),
        within=reported_within(given.activity) if given.activity else None,
        thread_exceptions=tuple(
            [ThreadException(one.thread, one.text, one.raised_at) for one in given.thread_exceptions]
        ),
        decisions=tuple(
            [
                Decision(text(one.name), text(one.value), one.digest, one.first, one.last, one.step)
                for one in given.decisions
            ]
        ),
    )


class MemberReader:
    """Reads the member lists of one report or span."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._left = MAX_NEW_MEMBERS

    def read(self, text: str) -> tuple[int, ...]:
        members = self._interner.members
        known = members.get(text)
        if known is None:
            if self._left <= 0:
                return ()
            ranks = tuple(identity.decode_ranks(text))
            self._left -= 16 + len(ranks)
            known = members.put(text, ranks)
        return known

    def groups(self, given: Iterable[rank_report.ReportedGroup]) -> list[Group]:
        """The groups of a report. All ranks name a group alike, so one object serves them all."""
        interner, found = self._interner, []
        for one in given:
            key = one.id, one.name, one.description, one.ranks
            found.append(interner.groups.get(key) or self._group(key))
        return found

    def _group(self, key: tuple[str, str, str, str]) -> Group:
        id_, name, description, text = key
        ranks = self.read(text)
        group = Group(self._interner.text(id_), name[:MAX_GROUP_NAME], description[:MAX_GROUP_NAME], ranks)
        # Members for which there was no room in this report may be read in the next one.
        return self._interner.groups.put(key, group) if ranks or not text else group


class _CallReader:
    """Reads the calls of one report. ``weight``: their weight beyond one `UNIT` each."""

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
            thread=interner.text(given.thread) if given.thread else "",
        )
