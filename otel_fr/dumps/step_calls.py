"""Counts the calls of each training step in each process group. The counts are decisions that no program must report.

A rank that leaves out a batch enqueues fewer calls in that step. Nothing fails at first: its calls meet its peers'
calls for another batch. Only later, perhaps in the last step, a call does not match or is missing. The ring has the
records of the rank's calls and the times of its steps.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_fr.decision_names import CALLS_IN, FIRST_CALL_IN
from otel_fr.fingerprint import common_dtypes, common_sizes
from otel_fr.operations import OPERATIONS
from otel_fr.presentation import group_text
from otel_fr.ring import KIND_COLLECTIVE, Activity, Decided, Record, RingReader, SignatureDef
from otel_fr.stacks import is_of_cpp

MAX_RECORDS: Final = 4096
"""How many of the newest records a monitor reads for this, in a few hundredths of a second."""
MAX_GROUPS: Final = 4
"""In how many groups, the most recently used, calls are counted. Dozens of groups would fill a rank's reports."""


@dataclass(slots=True)
class _Used:
    """The calls of one group: their number and the first one, by index of the step."""

    counts: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, Record] = field(default_factory=dict)
    last: int = 0


def steps_of(reader: RingReader) -> list[Activity]:
    """The steps in a ring, the present one last. Empty: the program reports no steps and has no optimizer."""
    activity = reader.activity
    present = None if activity is None else activity.step()
    if activity is None or present is None:
        return []
    ended = [item for item in activity.ended(0)[0] if item.is_step and item.number < present.number]
    return [*sorted(ended, key=lambda item: item.number), present]


def step_calls(records: Sequence[Record], steps: Sequence[Activity]) -> list[Decided]:
    """The number of calls in each step that has ended, and the first call of each, by group.

    Args:
        records: the calls, oldest first. If older calls are missing, the step of the first call is left out.
        steps: the steps. The last step has not ended.

    Returns:
        The decisions. The number of a decision is the step's number plus one, so that it is the same on all ranks.
    """
    steps = _rising(steps)
    if records and records[0].record_id > 0:
        steps = [step for step in steps if step.began_ns > records[0].issued_ns]
    found: list[Decided] = []
    threads = {step.thread for step in steps}
    for label, used in _by_group(records, [step.began_ns for step in steps], threads):
        begin = min(used.counts)
        ended = [(at, str(used.counts.get(at, 0)), steps[at + 1].began_ns) for at in range(begin, len(steps) - 1)]
        found += _runs(CALLS_IN + label, ended, steps)
        firsts = [(at, _text(record.signature), record.issued_ns) for at, record in sorted(used.firsts.items())]
        found += _runs(FIRST_CALL_IN + label, firsts, steps)
    return sorted(found, key=lambda item: item.decided_ns)


def _rising(steps: Sequence[Activity]) -> list[Activity]:
    """The last steps with increasing numbers: a program may count the steps of each epoch from 0."""
    kept: list[Activity] = []
    for step in reversed(steps):
        if step.step < 0 or (kept and step.step >= kept[-1].step):
            break
        kept.append(step)
    return kept[::-1]


def _by_group(records: Iterable[Record], begins: Sequence[int], threads: Collection[int]) -> list[tuple[str, _Used]]:
    """The most recently used groups, with their names.

    Args:
        threads: threads that begin steps. Calls of other threads are not counted: a thread that writes a checkpoint,
            for example, makes them in different steps on each rank.
    """
    groups: dict[str, _Used] = {}
    labels: dict[str, str] = {}
    for record in records:
        step = bisect_right(begins, record.issued_ns) - 1
        if step < 0 or record.kind != KIND_COLLECTIVE:
            continue
        if record.thread_ident not in threads and record.thread_ident and not is_of_cpp(record.thread):
            continue
        group = record.group
        used = groups.get(group.id)
        if used is None:
            used = groups[group.id] = _Used()
            labels[group.id] = group_text(group.name, group.description)
        used.counts[step] = used.counts.get(step, 0) + 1
        used.firsts.setdefault(step, record)
        used.last = record.record_id
    newest = sorted(groups.items(), key=lambda item: item[1].last)[-MAX_GROUPS:]
    return [(labels[id_], used) for id_, used in newest]


def _runs(name: str, values: Iterable[tuple[int, str, int]], steps: Sequence[Activity]) -> list[Decided]:
    """Join equal values of consecutive steps. ``values``: (index of the step, value, when)."""
    found: list[Decided] = []
    value, first, last, since = "", 0, -1, 0
    for at, text, when in values:
        number = steps[at].step
        if last >= 0 and text == value:
            last = number
            continue
        if last >= 0:
            found.append(_decided(name, value, first, last, since))
        value, first, last, since = text, number, number, when
    if last >= 0:
        found.append(_decided(name, value, first, last, since))
    return found


def _decided(name: str, value: str, first: int, last: int, when: int) -> Decided:
    return Decided(name, first + 1, last + 1, first, value, zlib.crc32(value.encode("utf-8", "replace")), when)


def _text(signature: SignatureDef) -> str:
    """``"all_reduce sum Float [64, 2]"``: the arguments that are the same on all members."""
    if signature.operation not in OPERATIONS:
        return signature.operation
    parts = [signature.operation, signature.reduce_op or "", ", ".join(dict.fromkeys(common_dtypes(signature)))]
    parts += [" ".join(str(list(size)) for size in common_sizes(signature))]
    return " ".join(part for part in parts if part)
