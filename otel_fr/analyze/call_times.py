"""When the calls of a run were made, how long they took, and what the ranks did before them, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from otel_fr.analyze.assemble.clocks import valid
from otel_fr.analyze.assemble.runs import Run
from otel_fr.analyze.collectives import entries_by_rank
from otel_fr.dumps import fields
from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, P2P, Floats, Integers, Mask
from otel_fr.dumps.entry import Entry
from otel_fr.dumps.model import Dump
from otel_fr.identity import Stream
from otel_fr.match import CallState, Group, Signature
from otel_fr.presentation import UNDESCRIBED
from otel_fr.torch_recorder import ends_are_seen
from otel_fr.waits.measure import NANO
from otel_fr.waits.own_time import OwnTime

_POSITIVE = (1 << 63) - 1
_SAME = 1e-7
"""Seconds by which equal durations may differ after rounding."""


class KindKey(NamedTuple):
    """Calls that are counted together.

    Attributes:
        group: description of the groups, or ``"8 ranks"`` if they have none.
        size: bytes of the inputs. None: not known.
        is_on_device: the durations were measured on devices.
    """

    operation: str
    group: str
    size: int | None
    is_on_device: bool


class CallTimes(NamedTuple):
    """Completed collectives of all ranks whose durations are known. Each column has one value per call.

    Attributes:
        dump: index of the file in ``Run.dumps``.
        position: index of the call in the file.
        group: index in ``Run.evidence.groups``.
        sequence: sequence number.
        kind: index of the call's `KindKey`.
        created: when the call was enqueued, in ns.
        took: seconds.
        own: seconds that the rank itself needed before the call. NaN: not known.
        messages: 63 bits of `waits.own_time.Before.messages`. -1: not known.
    """

    dump: Integers
    position: Integers
    group: Integers
    sequence: Integers
    kind: Integers
    created: Integers
    took: Floats
    own: Floats
    messages: Integers


class _CallKind(NamedTuple):
    """Implements `otel_fr.waits.own_time.Kind`."""

    group: Group
    signature: Signature
    stream: Stream
    is_end_seen: bool


def call_times(run: Run) -> tuple[CallTimes, list[KindKey]]:
    """Return the calls, rank by rank, oldest first, and their kinds."""
    groups = list(run.evidence.groups.values())
    index = {group.id: number for number, group in enumerate(groups)}
    titles = [f"{len(one.ranks)} ranks" if one.description in UNDESCRIBED else one.description for one in groups]
    kinds: dict[KindKey, int] = {}
    of_ranks = entries_by_rank(run) if any(map(_needs_own_time, run.dumps)) else repeat(None)
    found = []
    for number, (dump, of_rank) in enumerate(zip(run.dumps, of_ranks, strict=False)):
        entries, took = dump.entries, durations(dump)
        if not len(entries):
            continue
        group = np.array([index.get(run.ids[dump.rank].get(key, ""), -1) for key in entries.groups], np.int64)[
            entries.group
        ]
        is_done = (entries.stream == COLLECTIVE) & (entries.state == COMPLETED)
        chosen = np.flatnonzero(is_done & (group >= 0) & (took >= 0))
        own = np.full(len(entries), np.nan) if entries.gap is None else entries.gap.copy()
        messages = np.zeros(len(entries), np.int64)
        if of_rank is not None:
            _note_all(dump, of_rank, took, own, messages)
        created = np.zeros(len(entries), np.int64) if entries.created is None else entries.created
        columns = (group, entries.sequence_id, _kinds(dump, group, titles, kinds), created, took, own, messages)
        found.append((np.full(len(chosen), number), chosen, *(column[chosen] for column in columns)))
    return CallTimes(*(np.concatenate(parts) for parts in zip(*found, strict=True))), list(kinds)


def _kinds(dump: Dump, group: Integers, titles: Sequence[str], kinds: dict[KindKey, int]) -> Integers:
    """The kind of each call of a file. -1: the run does not have the call's group."""
    entries = dump.entries
    sizes = [fields.bytes_of(one.input_sizes, one.input_dtypes) for one in entries.signatures]
    pairs = (group * len(entries.signatures) + entries.signature) * 2 + on_device(dump)
    distinct, pair_of = np.unique(pairs, return_inverse=True)
    numbers = []
    for pair in distinct.tolist():
        at, signature = divmod(pair // 2, len(entries.signatures))
        operation = entries.signatures[signature].operation
        key = KindKey(operation, titles[at], sizes[signature], bool(pair % 2)) if at >= 0 else None
        numbers.append(-1 if key is None else kinds.setdefault(key, len(kinds)))
    return np.array(numbers, np.int64)[pair_of]


def on_device(dump: Dump) -> Mask:
    """Mask of the calls that run on a device, so that their ends on the host mean nothing."""
    entries = dump.entries
    seen = np.array([ends_are_seen(label.backend) for label in entries.labels] or [False])
    return seen[entries.label] if len(entries) else np.zeros(0, np.bool_)


def durations(dump: Dump) -> Floats:
    """Seconds of each call: by its device's clock if it runs on a device, else from enqueue to end. NaN: not known."""
    entries, count = dump.entries, len(dump.entries)
    took = np.full(count, np.nan)
    if entries.created is not None and entries.ended is not None:
        has_times = valid(entries.created, count) & valid(entries.ended, count)
        took[has_times] = (entries.ended - entries.created)[has_times] / NANO
    seen = on_device(dump)
    if entries.duration is None:
        took[seen] = np.nan
    else:
        # If the device's times are not known, otel-fr's files contain the time at which the end was noticed.
        is_seen_late = np.abs(entries.duration - took) < _SAME
        took[seen] = np.where(is_seen_late, np.nan, entries.duration)[seen]
    return took


def _needs_own_time(dump: Dump) -> bool:
    return bool((dump.entries.stream == P2P).any() or (on_device(dump) & (durations(dump) >= 0)).any())


def _note_all(
    dump: Dump,
    of_rank: tuple[int, Iterable[Entry], dict[str, Group]],
    took: Floats,
    own: Floats,
    messages: Integers,
) -> None:
    """Fill in the rank's own time before each of its calls, and its messages since the previous collective."""
    rank, entries, groups = of_rank
    positions = {record: position for position, record in enumerate(dump.entries.record.tolist())}
    own_time, last = OwnTime(), -1
    for entry in entries:
        at, group = positions.get(entry.record, -1), groups.get(entry.group)
        is_next, last = entry.record == last + 1, entry.record
        if at < 0 or group is None or entry.state is not CallState.COMPLETED or not took[at] >= 0:
            own_time.marks.clear()
            continue
        is_seen = ends_are_seen(entry.backend)
        kind, seconds = _CallKind(group, entry.signature, entry.stream, is_seen), float(took[at])
        before = own_time.note(kind, rank, seconds, seconds if is_seen else None, is_next=is_next)
        if before is not None:
            messages[at] = -1 if before.messages is None else before.messages & _POSITIVE
        if is_seen:
            own[at] = np.nan if before is None or before.own is None else before.own
