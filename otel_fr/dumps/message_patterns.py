"""Finds messages that a rank makes equally often in each step, and those it left out or delayed in its last step.

If ranks wait for each other in messages, this shows which rank broke its own pattern. It needs only the rank's own
calls, but many of them. A monitor has them in its ring, and `otel_fr.analyze` in the rank's file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from otel_fr.operations import way
from otel_fr.rank_report import MAX_PATTERNS, ReportedPattern
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, Record, RecordState

MIN_STEPS: Final = 3
"""Steps with the same number of messages, including the last one, that make a pattern. Two may be equal by chance."""
MAX_GROUPS: Final = 16
"""How many groups, the most recently used, may end steps by their collectives. Messages are counted for each group."""


class OwnCall(NamedTuple):
    """A collective, send or receive of the rank.

    Attributes:
        record: how many calls the rank enqueued before it.
        group: id of the `otel_fr.match.Group`.
        number: sequence number of a collective in its group.
        ends: source, destination (global ranks) and tag of a message. None for a collective.
    """

    record: int
    group: str
    is_completed: bool
    number: int = 0
    ends: tuple[int, int, int] | None = None


_Kind = tuple[str, tuple[int, int, int]]
"""Group and ends of a message. The source, which comes first, distinguishes a rank's sends from its receives."""


class _Steps(NamedTuple):
    """The calls that end the steps of a rank, up to the first call in flight.

    Attributes:
        group: the group, if the calls are its collectives. "" if they are messages.
        marks: record ids of the calls.
        is_open: the last call is a collective in flight.
    """

    group: str
    marks: list[int]
    is_open: bool


def message_patterns(calls: Sequence[OwnCall]) -> tuple[ReportedPattern, ...]:
    """The broken patterns, then the patterns that the rank has kept so far.

    A step lies between two collectives of a group. For kept patterns, the rank must have a collective of that group in
    flight. For broken patterns, any group counts, and a step may also lie between two messages like the first message
    in flight. Steps count from the oldest known message. A pattern is also broken if the rank made another message
    instead of the expected one.

    Args:
        calls: the rank's calls, oldest first.
    """
    messages: defaultdict[_Kind, list[int]] = defaultdict(list)
    collectives: defaultdict[str, dict[int, OwnCall]] = defaultdict(dict)
    open_: OwnCall | None = None
    for call in calls:
        if call.ends is None:
            collectives[call.group].setdefault(call.number, call)
            continue
        messages[call.group, call.ends].append(call.record)
        if open_ is None and not call.is_completed:
            open_ = call
    found = list(_between_collectives(collectives))
    if open_ is not None and open_.ends is not None:
        like = messages[open_.group, open_.ends]
        found.append(_Steps("", like[: like.index(open_.record) + 1], is_open=False))
    kept, broken = dict[ReportedPattern, None](), dict[ReportedPattern, None]()
    for steps in found:
        count = len(steps.marks) - 1
        for (group, ends), records in messages.items():
            by_step = Counter(map(partial(bisect_right, steps.marks), records))  # 1: in the first step; 0: before it
            del by_step[0]
            if steps.is_open and _usual(by_step, count):
                kept[ReportedPattern(group, *ends, steps.group)] = None
            elif by_step[count] < _usual(by_step, count - 1):
                broken[ReportedPattern(group, *ends)] = None
    if (put_off := _put_off(calls)) is not None:
        broken[ReportedPattern(put_off[0], *put_off[1])] = None
    return (*broken, *kept)[:MAX_PATTERNS]


def own_calls(records: Iterable[Record], rank: int) -> Iterator[OwnCall]:
    """Convert a ring's records to the calls that `message_patterns` needs."""
    for record in records:
        group, what, is_completed = record.group.id, record.signature, record.state is RecordState.COMPLETED
        if record.kind == KIND_COLLECTIVE:
            yield OwnCall(record.record_id, group, is_completed, number=record.coll_seq)
        elif record.kind == KIND_P2P and what.peer is not None and not what.any_source:
            ends = *way(what.operation, rank, what.peer), what.tag or 0
            yield OwnCall(record.record_id, group, is_completed, ends=ends)


def _between_collectives(found: Mapping[str, Mapping[int, OwnCall]]) -> Iterator[_Steps]:
    """The steps between the collectives of each group.

    Args:
        found: collectives by group and sequence number. The first call of a batch stands for the batch.
    """
    used = sorted(((group, list(by_number.values())) for group, by_number in found.items()), key=lambda one: one[1][-1])
    for group, ends in used[-MAX_GROUPS:]:
        open_ = next((at for at, call in enumerate(ends) if not call.is_completed), None)
        marks = [call.record for call in (ends if open_ is None else ends[: open_ + 1])]
        yield _Steps(group, marks, open_ is not None)


def _usual(by_step: Mapping[int, int], count: int) -> int:
    """Number of messages in each step from the first step with any to step ``count``. 0: there is no pattern.

    Parts of a step may look like steps, such as a pipeline's micro-batches (first forwards, then backwards). So there
    must be more steps with messages than without.
    """
    own, first = [number for step, number in by_step.items() if step <= count], next(iter(by_step), 1)
    is_steady = len(own) >= max(MIN_STEPS, first) and len(own) == count + 1 - first and len(set(own)) == 1
    return own[0] if is_steady else 0


def _put_off(calls: Sequence[OwnCall]) -> _Kind | None:
    """The message that the rank put off: after steps with equal orders of calls, it made another usual message instead.

    Among the possible lengths of a step, the largest counts: parts of a step may repeat within it.
    """
    numbers: dict[object, int] = {}
    order = [numbers.setdefault((call.group, call.ends), len(numbers)) for call in calls]
    for length in range(len(order) // MIN_STEPS, 0, -1):
        last = range(len(order) - length, len(order))
        at = next((at for at in last if order[at] != order[at - length]), len(order))
        first = at - (MIN_STEPS - 1) * length
        if first < length or order[first:at] != order[first - length : at - length]:
            continue
        if at == len(order) or calls[at].ends is None or order[at] not in order[first:at]:
            return None
        wanted = calls[at - length]
        return None if wanted.ends is None else (wanted.group, wanted.ends)
    return None
