"""What the communication of a run costs: time in calls, how much of it is waiting, and for which rank.

As in the collector, waits are measured in collectives that end on all members at once, from each rank's own times
(`otel_fr.waits`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from otel_fr.analyze.assemble.clocks import valid
from otel_fr.analyze.assemble.runs import Run
from otel_fr.analyze.call_times import CallTimes, KindKey, call_times, on_device
from otel_fr.dumps.columns import Integers
from otel_fr.match import Group
from otel_fr.match.lateness import Lateness
from otel_fr.operations import ENDS_TOGETHER, ENDS_TOGETHER_ON_DEVICE
from otel_fr.waits.blocks import Blocks, StragglerLimits
from otel_fr.waits.measure import MIN_WAIT, NANO, is_shown, wait_of


@dataclass(slots=True)
class Kind:
    """The calls of one kind, of all ranks together.

    Attributes:
        ranks: number of ranks that made such calls.
        seconds: time from enqueueing the calls to their ends, or on the devices.
        measured: number of calls whose waits are known.
        wait, transfer: seconds that the measured calls spent waiting and transferring.
    """

    key: KindKey
    ranks: int
    calls: int
    seconds: float
    measured: int = 0
    wait: float = 0.0
    transfer: float = 0.0

    @property
    def each(self) -> float:
        """Mean number of calls of a rank."""
        return self.calls / self.ranks

    @property
    def mean(self) -> float:
        """Mean seconds of a call."""
        return self.seconds / self.calls

    @property
    def parts(self) -> tuple[float, float] | None:
        """Mean seconds of waiting and of transfer in a call. None: not known."""
        return (self.wait / self.measured, self.transfer / self.measured) if self.measured else None


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that others waited for again and again.

    Attributes:
        before: line of the call before which the rank lost the most time. "": not known.
        after: line of the rank's previous call. "": not known.
    """

    group: Group
    late: Lateness
    before: str
    after: str


@dataclass(slots=True)
class Performance:
    """The performance of one run.

    Attributes:
        seconds: time that the files cover, as the mean over the ranks. 0: no file has times.
        in_flight: share of `seconds` in which a call was in flight: exposed communication takes at most this share.
            None: there are calls on devices.
        kinds: the kinds of calls, most time first.
        slowest: None: no rank is the slowest again and again.
        waited_for: rank -> seconds for which half of a group waited for it, when it came last.
    """

    seconds: float = 0.0
    in_flight: float | None = None
    kinds: list[Kind] = field(default_factory=list)
    slowest: Slowest | None = None
    waited_for: dict[int, float] = field(default_factory=dict)

    def share(self, kind: Kind) -> float:
        """Share of `seconds` that a rank spends in calls of this kind, as the mean over the ranks."""
        return kind.seconds / kind.ranks / self.seconds

    def waited_share(self, rank: int) -> float:
        """Share of `seconds` for which others waited for the rank."""
        return min(1.0, self.waited_for.get(rank, 0.0) / self.seconds)


def performance_of(run: Run) -> Performance:
    """Measure the performance of a run."""
    found = Performance(*_covered(run))
    if found.seconds:
        calls, keys = call_times(run)
        measured = _Measured(run, calls, keys)
        measured.add_all()
        found.kinds = sorted((kind for kind in measured.kinds if kind.calls), key=found.share, reverse=True)
        found.slowest = max(measured.slowest, key=lambda one: one.late.waited, default=None)
        found.waited_for = dict(measured.waited_for)
    return found


def _kinds(calls: CallTimes, keys: list[KindKey]) -> list[Kind]:
    """The kinds, without waits. There may be as many as calls, if each has another size."""
    files = int(calls.dump.max(initial=0)) + 1
    of_ranks = np.unique(calls.kind * files + calls.dump) // files
    ranks, counts = (np.bincount(column, minlength=len(keys)).tolist() for column in (of_ranks, calls.kind))
    seconds = np.bincount(calls.kind, calls.took, len(keys)).tolist()
    return list(map(Kind, keys, ranks, counts, seconds))


class _Room:
    """Implements `otel_fr.waits.blocks.Room`. It sets no limit: the files bound the number of groups."""

    watched = 0


class _Measured:
    """Adds up the measurements of groups."""

    def __init__(self, run: Run, calls: CallTimes, keys: list[KindKey]) -> None:
        self._run = run
        self._calls = calls
        self._groups = list(run.evidence.groups.values())
        self._ranks = np.array([dump.rank for dump in run.dumps], np.int64)
        self.kinds = _kinds(calls, keys)
        self.slowest: list[Slowest] = []
        self.waited_for: dict[int, float] = defaultdict(float)

    def add_all(self) -> None:
        """Measure the waits in all groups."""
        calls = self._calls
        order = np.lexsort((calls.dump, calls.sequence, calls.group))
        numbers, starts = np.unique(calls.group[order], return_index=True)
        counts = np.diff(starts, append=len(order))
        for number, start, count in zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True):
            self._add(self._groups[number], order[start : start + count])

    def _add(self, group: Group, order: Integers) -> None:
        """Measure the waits in a group. ``order``: its calls by sequence number and rank."""
        calls = self._calls
        if len(group.ranks) < 2:
            return
        starts = np.flatnonzero(np.diff(calls.sequence[order], prepend=-1))
        blocks = Blocks(StragglerLimits(), _Room())
        blocks.members = len(group.ranks)
        sites: dict[tuple[int, str, str], float] = defaultdict(float)
        is_first = True
        for at, count in zip(starts.tolist(), np.diff(starts, append=len(order)).tolist(), strict=True):
            chosen = order[at : at + count]
            if count != len(group.ranks) or not np.diff(calls.dump[chosen]).all():
                continue  # some members' calls are not in the files, or it is a batch of several calls of each
            since = float(calls.created[chosen[0]]) / NANO
            (blocks.begin if is_first else blocks.move_to)(since)
            is_first = False
            self._measure(chosen, blocks, sites)
        late = blocks.slowest()
        if late is not None:
            own = [site for site in sites if site[0] == late.rank]
            _, before, after = max(own, key=lambda site: sites[site], default=(late.rank, "", ""))
            self.slowest.append(Slowest(group, late, before, after))

    def _measure(self, chosen: Integers, blocks: Blocks, sites: dict[tuple[int, str, str], float]) -> None:
        """Measure the wait in one collective. ``chosen``: the calls of all members."""
        calls = self._calls
        kind, took = self.kinds[calls.kind[chosen[0]]], calls.took[chosen]
        if kind.key.operation not in (ENDS_TOGETHER_ON_DEVICE if kind.key.is_on_device else ENDS_TOGETHER):
            return
        least = float(took.min()) * len(took)
        kind.measured += len(took)
        kind.transfer += least
        kind.wait += float(took.sum()) - least
        durations = (took * NANO).tolist()
        if not is_shown(durations) or len(set(calls.messages[chosen].tolist())) > 1:
            return
        wait = wait_of(durations, [None if own != own else own for own in calls.own[chosen].tolist()])
        if wait is None:
            return
        ranks = self._ranks[calls.dump[chosen]].tolist()
        for index, lag in wait.late:
            blocks.add(ranks[index], lag, 1)
            if lag > 0:
                before, after = self._sites(chosen[index])
                sites[ranks[index], before, after] += lag
        if wait.behind >= MIN_WAIT:
            self.waited_for[ranks[wait.last]] += wait.behind

    def _sites(self, call: int) -> tuple[str, str]:
        """The lines of a call and of the rank's previous call."""
        entries, at = self._run.dumps[self._calls.dump[call]].entries, int(self._calls.position[call])
        lines = [entries.call_sites[entries.call_site[place]].site for place in (at, at - 1) if place >= 0]
        return lines[0], lines[1] if at else ""


def _covered(run: Run) -> tuple[float, float | None]:
    """Mean seconds that the files cover, and the share of them in which a call was in flight."""
    seconds: list[float] = []
    shares: list[float] = []
    for dump in run.dumps:
        entries, count = dump.entries, len(dump.entries)
        has_times = valid(entries.created, count) & valid(entries.ended, count)
        if entries.created is None or entries.ended is None or not has_times.any():
            continue
        order = np.argsort(entries.created[has_times], kind="stable")
        created, ended = entries.created[has_times][order], entries.ended[has_times][order]
        latest = np.maximum.accumulate(ended)
        span = int(latest[-1]) - int(created[0])
        if span <= 0:
            continue
        idle = int(np.maximum(0, created[1:] - latest[:-1]).sum())
        seconds.append(span / NANO)
        shares.append(1 - idle / span)
    is_on_device = any(bool(on_device(dump).any()) for dump in run.dumps)
    in_flight = None if is_on_device or not shares else sum(shares) / len(shares)
    return (sum(seconds) / len(seconds) if seconds else 0.0), in_flight
