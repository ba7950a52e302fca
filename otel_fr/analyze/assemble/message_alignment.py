"""Finds which send belongs to which receive, in files that do not number them and lack older calls."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, Codes, Integers, Table
from otel_fr.dumps.model import Dump

MIN_SHARED = 2
"""Collectives that both ranks must have recorded before their message counts between them are compared."""


class PairEnd(NamedTuple):
    """One rank's sends to (or receives from) one peer with one tag, oldest first.

    Attributes:
        partial: older calls, or completed ones, may be missing from the file.
        record: record ids of the rank.
        state: indices into `columns.STATES`.
    """

    partial: bool
    record: Integers
    state: Codes


class SharedCollectives(NamedTuple):
    """The collectives that a rank has recorded. ``key`` is the same on all ranks; ``record``: the rank's record id."""

    key: Integers
    record: Integers


class Alignment(NamedTuple):
    """Numbers of sends and receives. A send and its receive have the same number.

    Attributes:
        sends, receives: numbers from 0. -1: not numbered, because the call has completed or the peer's file does not go
            back that far.
        is_sure: False: calls with the same number may belong to different messages (small messages are sent before they
            are received), but each has a counterpart.
    """

    sends: Integers
    receives: Integers
    is_sure: bool = True


def shared_collectives(dump: Dump, groups: Table[str]) -> SharedCollectives:
    """A file's collectives. Empty if messages between them may be missing.

    Args:
        groups: gives each group a number, which is the same for all files.
    """
    if not dump.gapless:
        return SharedCollectives(np.empty(0, np.int64), np.empty(0, np.int64))
    entries = dump.entries
    which = entries.stream == COLLECTIVE
    number = np.array([groups[key] for key in entries.groups] or [0], np.int64)[entries.group[which]]
    key, first = np.unique((number << 40) + entries.sequence_id[which] % (1 << 40), return_index=True)
    return SharedCollectives(key, entries.record[which][first])


def align(
    sends: PairEnd, receives: PairEnd, of_sender: SharedCollectives, of_receiver: SharedCollectives
) -> Alignment | None:
    """Number the sends and receives of a pair. None: the files do not show which belong together.

    If both files contain every call, the first send belongs to the first receive. Otherwise the collectives that both
    ranks recorded are used. If there are as many sends as receives between any two of them, the messages before and
    after each collective belong together. A receive that completed before its send was enqueued refutes that: the
    calls may straddle a collective, or one file is older.

    Without such collectives only the calls in flight are paired, and only if both sides have equally many: otherwise
    the peer's call may have completed and been overwritten.
    """
    if not sends.partial and not receives.partial:
        return Alignment(np.arange(len(sends.record)), np.arange(len(receives.record)))
    found = _by_shared_collectives(sends, receives, of_sender, of_receiver)
    return found if found is not None else _by_open_calls(sends, receives)


def _by_shared_collectives(
    sends: PairEnd, receives: PairEnd, of_sender: SharedCollectives, of_receiver: SharedCollectives
) -> Alignment | None:
    _, here, there = np.intersect1d(of_sender.key, of_receiver.key, assume_unique=True, return_indices=True)
    if len(here) < MIN_SHARED:
        return None
    sent = np.searchsorted(sends.record, of_sender.record[here])
    received = np.searchsorted(receives.record, of_receiver.record[there])
    ahead = sent - received
    if (ahead != ahead[0]).any():
        return None
    shift = int(ahead[0])
    send_numbers = np.arange(len(sends.record)) + max(0, -shift)
    receive_numbers = np.arange(len(receives.record)) + max(0, shift)
    completed = receive_numbers[receives.state == COMPLETED]
    enqueued = max(0, -shift) + len(sends.record)
    if len(completed) and completed[-1] >= enqueued:
        return None
    if sends.partial:
        receive_numbers[receive_numbers < max(0, -shift)] = -1
    if receives.partial:
        send_numbers[send_numbers < max(0, shift)] = -1
    return Alignment(send_numbers, receive_numbers)


def _by_open_calls(sends: PairEnd, receives: PairEnd) -> Alignment | None:
    open_sends, open_receives = sends.state != COMPLETED, receives.state != COMPLETED
    if np.count_nonzero(open_sends) != np.count_nonzero(open_receives):
        return None
    return Alignment(_counted(open_sends), _counted(open_receives), is_sure=False)


def _counted(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Integers:
    return np.where(mask, np.cumsum(mask) - 1, -1)
