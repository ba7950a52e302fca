"""Which send belongs to which receive, where files do not number them and older calls are missing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_fr.dump.columns import COLLECTIVE, COMPLETED, Codes, Integers, Table
from otel_fr.dump.model import Dump

MIN_ANCHORS = 2
"""Collectives that both ranks have recorded before their counts of messages are compared: one shows no rhythm."""


class Half(NamedTuple):
    """One rank's sends to (or receives from) one peer with one tag, oldest first.

    Attributes:
        partial: older ones may be missing from its file, or completed ones.
        record: places in the rank's recorder. state: indices into `columns.STATES`.
    """

    partial: bool
    record: Integers
    state: Codes


class Anchors(NamedTuple):
    """The collectives that a rank has recorded: a number for each that is the same in every rank, and its place."""

    key: Integers
    record: Integers


class Alignment(NamedTuple):
    """Numbers such that a send and its receive have the same.

    Attributes:
        sends, receives: none below 0; -1: it has none, because it completed, or because the peer's file does not reach
            back to it.
        is_sure: False: those with the same number may belong to different messages (small ones are sent before anybody
            receives them), but neither end lacks the other.
    """

    sends: Integers
    receives: Integers
    is_sure: bool = True


def anchors(dump: Dump, groups: Table[str]) -> Anchors:
    """``groups`` gives the groups of all files common numbers. None where messages beside them may be left out."""
    if not dump.gapless:
        return Anchors(np.empty(0, np.int64), np.empty(0, np.int64))
    entries = dump.entries
    which = entries.stream == COLLECTIVE
    number = np.array([groups[key] for key in entries.groups] or [0], np.int64)[entries.group[which]]
    key, first = np.unique((number << 40) + entries.sequence_id[which] % (1 << 40), return_index=True)
    return Anchors(key, entries.record[which][first])


def align(sends: Half, receives: Half, of_sender: Anchors, of_receiver: Anchors) -> Alignment | None:
    """Which send is for which receive; None: the files do not tell.

    Where both files hold every call the first send is for the first receive. Else the collectives that both ranks have
    recorded tell: if as many sends as receives lie between any two of them, the messages before and after each of them
    belong together too. A receive that completed before its send was issued refutes that (the calls may straddle a
    collective, or one file is older). Without such collectives only calls that are open on both sides are paired, and
    only if they are as many: of any other, its peer may have completed and be overwritten.
    """
    if not sends.partial and not receives.partial:
        return Alignment(np.arange(len(sends.record)), np.arange(len(receives.record)))
    found = _by_anchors(sends, receives, of_sender, of_receiver)
    return found if found is not None else _by_open_calls(sends, receives)


def _by_anchors(sends: Half, receives: Half, of_sender: Anchors, of_receiver: Anchors) -> Alignment | None:
    _, here, there = np.intersect1d(of_sender.key, of_receiver.key, assume_unique=True, return_indices=True)
    if len(here) < MIN_ANCHORS:
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
    issued = max(0, -shift) + len(sends.record)
    if len(completed) and completed[-1] >= issued:
        return None
    if sends.partial:
        receive_numbers[receive_numbers < max(0, -shift)] = -1
    if receives.partial:
        send_numbers[send_numbers < max(0, shift)] = -1
    return Alignment(send_numbers, receive_numbers)


def _by_open_calls(sends: Half, receives: Half) -> Alignment | None:
    open_sends, open_receives = sends.state != COMPLETED, receives.state != COMPLETED
    if np.count_nonzero(open_sends) != np.count_nonzero(open_receives):
        return None
    return Alignment(_counted(open_sends), _counted(open_receives), is_sure=False)


def _counted(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Integers:
    return np.where(mask, np.cumsum(mask) - 1, -1)
