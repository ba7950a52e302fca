"""Measures from spans how long the ranks of a group wait for the one that comes last (`otel_fr.waits.measure`).

A call on a device counts with its duration there, by the device's clock. A call whose end the rank itself sees counts
from enqueueing to the end, by the rank's clock. If a thread of the host only observes that a device has ended a call,
this does not show who came last: without the device's times, nobody is named. Ranks that exchanged different messages
since the group's previous collective, such as the first and the last stage of a pipeline, have different work, and are
not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_fr.match import CallState
from otel_fr.operations import ENDS_TOGETHER, ENDS_TOGETHER_ON_DEVICE
from otel_fr.waits.blocks import Blocks, StragglerLimits
from otel_fr.waits.measure import MIN_WAIT, NANO, TIMED_SHARE, Wait, is_shown, wait_of
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import CompactCall, RankCall, expand
from otel_fr_collector.jobs.tallies import Tallies
from otel_fr_collector.jobs.usage import Usage

FAST = 16.0
"""If a group makes more collectives per second, only one in `SAMPLE` is measured, to save time."""
SAMPLE = 4
MAX_STANDS_FOR = 16
"""A measured collective stands for at most this many: itself, and all since the previous measured one, which were not
in the sample or lacked times."""
_GOLDEN, _MASK = 2_654_435_769, 0xFFFF_FFFF
"""Numbers times 2^32 divided by the golden ratio, modulo 2^32, are spread evenly (Knuth, TAOCP 6.4), so that the sample
never keeps step with a number of collectives per training step."""
PERIOD = 2.0
"""Seconds over which the rate for `FAST` is measured: some training steps, so that a step's calls are treated alike."""
MAX_OPEN, MAX_TIMED = 1_024, 65_536
"""Limits for collectives on devices that wait for some members' spans: collectives of one group, and calls of all runs.
Monitors send spans some seconds apart."""
MAX_BACK = 60.0
"""Seconds by which collectives may come out of order. A larger step back means that the clock was set."""
MAX_LASTING = 4
"""Collectives of one group for which a `Counted` is kept."""


@dataclass(slots=True)
class Counted:
    """Seconds that were counted for a wait while it lasted. ``waited``, ``waited_for``: by rank."""

    lost: float = 0.0
    waited: dict[int, float] = field(default_factory=dict)
    waited_for: dict[int, float] = field(default_factory=dict)


NOTHING: Final = Counted()


@dataclass(slots=True, eq=False)
class Waits:
    """The waits of one group, bounded.

    Attributes:
        tallies: totals by rank. lost: total seconds that half of the group waited for its last rank.
        blocks: the latest waits in blocks of time, from which stragglers are named.
        measured: number of measured collectives. now: when the newest of them was enqueued (Unix time).
        is_off: nothing is measured, because spans are missing: what the ranks did before a collective is not known.
        open_at: when ranks were last seen waiting for long (monotonic).
        are_ends_seen: only the times at which ends were observed are known. They do not show who came last: NCCL's ends
            are observed up to 0.1 s late, on each rank at a different time.
    """

    _limits: StragglerLimits
    _usage: Usage
    tallies: Tallies = field(init=False)
    blocks: Blocks = field(init=False)
    lost: float = 0.0
    is_off: bool = False
    are_ends_seen: bool = False
    measured: int = 0
    now: float = 0.0
    open_at: float = float("-inf")
    _fast: bool = False
    _passed: float = 0.0
    _begun: float = 0.0
    _sequence: int = 0
    _open: dict[int, dict[int, CompactCall]] = field(default_factory=dict)
    _lasting: dict[int, Counted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tallies, self.blocks = Tallies(self._usage), Blocks(self._limits, self._usage)

    def add_open(
        self, sequence: int, waited: Mapping[int, float], absent: Iterable[int], members: int, now: float
    ) -> None:
        """Count a wait in progress, as far as it was not counted before. `_count` adds the rest when it ends.

        Args:
            waited: rank -> seconds that it has waited; half of the members or more. absent: ranks waited for.
        """
        self.open_at = now
        durations = sorted([0.0] * (members - len(waited)) + list(waited.values()))
        behind = durations[len(durations) // 2]
        while len(self._lasting) >= MAX_LASTING and sequence not in self._lasting:
            del self._lasting[next(iter(self._lasting))]
        so_far = self._lasting.setdefault(sequence, Counted())
        more = max(0.0, behind - so_far.lost)
        so_far.lost += more
        self.lost += more
        of_rank = self.tallies.of
        for rank, seconds in waited.items():
            more = seconds - so_far.waited.get(rank, 0.0)
            if more > 0.0 and (tally := of_rank(rank)) is not None:
                tally.waited += more
                so_far.waited[rank] = seconds
        for rank in absent:
            more = behind - so_far.waited_for.get(rank, 0.0)
            if more > 0.0 and (tally := of_rank(rank)) is not None:
                tally.waited_for += more
                so_far.waited_for[rank] = behind

    def is_open(self, now: float) -> bool:
        """Whether ranks of the group were seen waiting for long just now."""
        return now - self.open_at < timeline.OPEN_SECONDS

    def add(self, sequence: int, calls: Mapping[int, RankCall | CompactCall], members: tuple[int, ...]) -> None:
        """Take a collective that all members have completed, with the calls of all.

        Calls on devices count with their times there, see `add_timed`.
        """
        first = None if self.is_off else calls.get(members[0] if members else min(calls))
        if first is None:
            return
        if isinstance(first, RankCall):
            at, signature, is_seen = first.enqueued_wall, first.signature, first.is_end_seen
        else:
            at, signature, is_seen = first[5] / NANO, first[1].signature, first[1].is_end_seen
        if is_seen:
            self.are_ends_seen = not self.measured  # `add_timed` counts it
        elif self._is_measured(sequence) and at is not None:
            of = self._note(sequence, at, len(calls))
            if signature.operation in ENDS_TOGETHER:
                self._measure(calls, _durations(calls), of, self._lasting.pop(sequence, NOTHING))

    def add_timed(self, call: CompactCall, members: int) -> None:
        """Take one rank's call on its device. The collective is measured once the calls of all members have come.

        The instance may be complete and gone by then, because a report may show the call's end before its span comes.
        """
        rank, template, sequence = call[:3]
        is_timed = call[8] is not None and call[8].device is not None
        if self.is_off or members < 2 or not (is_timed or self._open or self.measured):
            return
        calls = self._open.get(sequence)
        if calls is None:
            if not self._is_measured(sequence, members):
                return
            while self._open and (len(self._open) >= MAX_OPEN or self._usage.timed >= MAX_TIMED):
                self._close(next(iter(self._open)))
            calls = self._open[sequence] = {}
        self._usage.timed += rank not in calls
        calls.setdefault(rank, call)
        if len(calls) < members:
            return
        self._close(sequence)
        timed = {rank: one for rank, one in calls.items() if one[8] is not None and one[8].device is not None}
        if len(timed) < max(2, TIMED_SHARE * members):
            return
        of = self._note(sequence, calls[min(calls)][5] / NANO, len(timed))
        if template.signature.operation in ENDS_TOGETHER_ON_DEVICE:
            self._measure(timed, _on_devices(timed), of, self._lasting.pop(sequence, NOTHING))

    def is_over(self, known: tuple[int, ...]) -> bool:
        """See `Blocks.is_over`."""
        return bool(self.measured) and self.blocks.is_over(known)

    def release(self) -> None:
        """Free the room of the group, which is dropped."""
        for sequence in list(self._open):
            self._close(sequence)
        self.tallies.release()
        self.blocks.release()

    def _close(self, sequence: int) -> None:
        self._usage.timed -= len(self._open.pop(sequence))

    def _is_measured(self, sequence: int, times: int = 1) -> bool:
        """Count a collective that has come. False: it is not in the sample.

        Args:
            times: how often this is called for a collective that is not in the sample.
        """
        is_measured = not self._fast or (sequence * _GOLDEN & _MASK) * SAMPLE <= _MASK
        self._passed += 1.0 if is_measured else 1.0 / times
        return is_measured

    def _note(self, sequence: int, at: float, members: int) -> int:
        """Note a measured collective; returns how many it stands for. Decides whether to sample from now on."""
        of = min(max(1, sequence - self._sequence), MAX_STANDS_FOR) if self.measured else 1
        self._sequence = sequence
        if not self.measured or not -MAX_BACK < at - self.now < 1e6:
            self.blocks.begin(at)  # the first one, or the clock was set
            self._fast, self._passed, self._begun = False, 0.0, at
        elif at - self._begun >= PERIOD:
            self._fast = self._passed > FAST * (at - self._begun)
            self._passed, self._begun = 0.0, at
        self.measured += 1
        self.are_ends_seen = False
        self.now = at
        self.blocks.members = members
        self.blocks.move_to(at)
        return of

    def _measure(
        self, calls: Mapping[int, RankCall | CompactCall], durations: list[float] | None, of: int, so_far: Counted
    ) -> None:
        """Count a wait in a collective that ends on all ranks at once.

        Args:
            of: how many collectives it stands for; one that was counted while it lasted stands only for itself.
        """
        if durations is None or not is_shown(durations) or not _are_alike(calls):
            return
        wait = wait_of(durations, [_own_time(call) for call in calls.values()])
        if wait is not None:
            self._count(list(calls), durations, wait, 1 if so_far is not NOTHING else of, so_far)

    def _count(self, ranks: list[int], durations: list[float], wait: Wait, of: int, so_far: Counted) -> None:
        """Count a wait. Ranks that came early count with negative lags, which offset their late ones.

        Args:
            of: how many collectives it stands for. so_far: what was counted while it lasted.
        """
        for index, lag in wait.late:
            self.blocks.add(ranks[index], lag * of, of)
        if wait.behind < MIN_WAIT:
            return
        self.lost += max(0.0, wait.behind * of - so_far.lost)
        of_rank, least = self.tallies.of, durations[wait.last]
        for rank, took in zip(ranks, durations, strict=True):
            if took > least and (tally := of_rank(rank)) is not None:
                tally.waited += max(0.0, (took - least) / NANO * of - so_far.waited.get(rank, 0.0))
        rank = ranks[wait.last]
        if (tally := of_rank(rank)) is not None:
            tally.waited_for += max(0.0, wait.behind * of - so_far.waited_for.get(rank, 0.0))
            tally.came_last += of


def _durations(calls: Mapping[int, RankCall | CompactCall]) -> list[float] | None:
    """Nanoseconds from enqueueing to the end of each call, in the calls' order; None: some are not known."""
    try:
        # Nearly always, all calls are compact. Checking each of them would take twice as long.
        return [end - start for _, _, _, _, _, start, end, _, _ in calls.values()]  # type: ignore[misc]
    except ValueError:  # a RankCall has more fields
        pass
    found: list[float] = []
    for call in map(expand, calls.values()):
        if call.duration is None or call.state is not CallState.COMPLETED:
            return None
        found.append(call.duration * NANO)
    return found


def _on_devices(calls: Mapping[int, CompactCall]) -> list[float]:
    """Nanoseconds that each call took on its device, in their order. All calls must have them."""
    return [before.device * NANO for *_, before in calls.values() if before is not None and before.device is not None]


def _own_time(call: RankCall | CompactCall) -> float | None:
    """Seconds that the rank took for itself before the call, see `Before`; None: not known."""
    gap, before = (call.gap, call.before) if isinstance(call, RankCall) else (call[7], call[8])
    return gap if before is None or before.own is None else before.own


def _are_alike(calls: Mapping[int, RankCall | CompactCall]) -> bool:
    """Whether all ranks are known to have exchanged the same messages, or none, since the previous collective."""
    found: set[int | None] = set()
    for call in calls.values():
        before = call.before if isinstance(call, RankCall) else call[8]
        found.add(0 if before is None else before.messages)
    return len(found) == 1 and None not in found
