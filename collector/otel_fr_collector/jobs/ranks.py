"""The state of one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from sys import getsizeof
from typing import Any, Final

from msgspec.structs import astuple, replace

from otel_fr.match import UNPLACED, Decision, Ending, Overdue, Place, ThreadException
from otel_fr.match.facts.ranks import process_ending, reported_within
from otel_fr.rank_report import RankReport, ReportedPattern
from otel_fr.stacks import CallLines, site_of
from otel_fr.waits.own_time import OwnTime
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import UNIT, CompactCall, bare
from otel_fr_collector.jobs.lateness import Delay
from otel_fr_collector.jobs.rank_reports import NOTHING, Contents
from otel_fr_collector.jobs.usage import Usage

ELSEWHERE: Final[dict[str, Any]] = {
    "groups": (), "in_flight": (), "failed": (), "last": None, "activity": (), "fetched": None, "ras": None,
    "exit": None, "exception": None, "thread_exceptions": (), "decisions": (), "lines": (), "stack": "", "file": "",
    "reason": "", "error": "",
}  # fmt: skip
"""Fields of a report that are stored in another form, or dropped."""

DESTROYED = -1
"""Replaces the number of a report in `RankState.progress` once the rank has destroyed the group."""
LOOKS = 3
"""Call sites kept from the latest stacks of a rank that moves: one stack shows only one moment."""
MAX_DESTROYED = 64
"""Destroyed groups of one rank whose call sites are kept; a report names as many groups (otel_fr/monitor)."""
MAX_REPORTED = 1_000_000
"""Size of the ranks' latest reports over all runs, in units of one call; beyond it new ones are cut short."""
CUT_CALLS, CUT_STACK = 4, 4_096
"""Of a report that is cut short, this many calls in flight and this many characters of each text are kept."""
CUT_FAR = 128
"""Characters of each text, with one call in flight, once reports exceed the limit by a quarter despite the cuts."""


def moves_of(report: RankReport) -> int:
    """Number of calls enqueued and ended in the groups that the rank still has. If it changes, the rank has moved."""
    return sum([one.calls_enqueued + one.calls_ended for one in report.groups if not one.is_destroyed])


@dataclass(slots=True)
class RankState:
    """One rank; times in seconds.

    Attributes:
        report: the latest report, without the fields in `ELSEWHERE`.
        contents: the rest of the latest report, without answers to requests.
        arrived: monotonic time at which the latest report arrived.
        lag: how much later it arrived than the rank's quickest reports do (`otel_fr_collector.jobs.lateness`).
    """

    rank: int
    report: RankReport | None = None
    contents: Contents = NOTHING
    arrived: float = 0.0
    lag: float = 0.0
    ending: Ending = Ending.RUNNING
    ended: float | None = None
    within: Overdue | None = None
    """`Rank.within` from the last report that had one. ``within_at``: when that report was sent."""
    within_at: float = 0.0
    looks: tuple[str, ...] = ()
    """The latest `LOOKS` call sites at which the rank was when its stacks were requested."""
    place: Place = UNPLACED
    replica: str = ""
    stack: str = ""
    stack_moves: int = 0
    """`moves_of` the reports to which stack, site, lines and patterns apply; 0: there are none."""
    site: str = ""
    python_blocked: bool = False
    exit_code: int | None = None
    signal: int | None = None
    kill_reason: str = ""
    ended_for_peer: bool = False
    exception: str = ""
    exception_site: str = ""
    is_exiting: bool = False
    exit_message: str = ""
    exit_site: str = ""
    thread_exceptions: tuple[ThreadException, ...] = ()
    decisions: tuple[Decision, ...] = ()
    lines: tuple[CallLines, ...] = ()
    """Lines that a report had with the stack."""
    decided_in: int | None = None
    patterns: tuple[ReportedPattern, ...] = ()
    file: str = ""
    has_gaps: bool = False
    """A report showed that recording had errors."""
    progress: dict[str, list[int]] = field(default_factory=dict)
    """By group id, a list: the last numbers enqueued and completed, from reports and spans alike; the number of the
    last report in which the group was live, or `DESTROYED`; the last numbers of a message and of a collective that a
    report showed enqueued (-1: no report did); the index in the run's `Levels`."""
    latest: dict[str, CompactCall] = field(default_factory=dict)
    """By group id: the newest collective that a span shows as completed."""
    destroyed_at: dict[str, str] = field(default_factory=dict)
    """By group id: the call site that destroyed the group. The latest `MAX_DESTROYED` are kept."""
    previous_record: int = -1
    previous_end: int = 0
    """Record, and end in Unix nanoseconds, of the newest call that a span shows."""
    completed_at: float | None = None
    """When the rank enqueued the newest call that reports show as completed (monotonic)."""
    held: int = 0
    """Size of its report and its texts, see `MAX_REPORTED`."""
    own_time: OwnTime = field(default_factory=OwnTime, repr=False)
    delay: Delay = field(default_factory=Delay, repr=False)

    def is_silent(self, now: float, floor: float = 0.0, behind: float = 0.0) -> bool:
        """Whether the rank has not reported for longer than `silence`, and is not known to have ended.

        Args:
            floor: monotonic time before which silence does not count.
            behind: seconds; reports that were sent within them may be on their way.
        """
        if self.ended is not None or now - max(self.arrived, floor) <= self.silence:
            return False  # a short path for nearly all calls: each rank of a job is checked each second
        return self.silent_for(now, floor, behind) > self.silence

    def silent_for(self, now: float, floor: float, behind: float) -> float:
        """Seconds without a report. The arguments are as for `is_silent`."""
        return min(now - max(self.arrived, floor), now - behind - max(self.sent, floor))

    @property
    def sent(self) -> float:
        """When the latest report was sent (monotonic): its arrival minus its lag."""
        return self.arrived - self.lag

    def measure_lag(self, stamp: float, now: float) -> float:
        """The lag of a new report, in seconds. ``stamp``: its time by the sender's clock; 0: not known."""
        if not stamp:
            return 0.0
        announced = math.inf if self.report is None else self.report.interval_s
        return self.delay.lag(stamp, now, announced)

    @property
    def silence(self) -> float:
        """Seconds without a report after which the rank counts as silent. A report announces when the next comes."""
        return timeline.SILENCE if self.report is None else self.report.interval_s + timeline.GRACE

    def has_destroyed(self, group: str) -> bool:
        """Whether the rank has destroyed a group in `progress`. Once it has ended, groups missing in its last report
        count, too."""
        last = self.progress[group][2]
        return last == DESTROYED or 0 < last < self.newest_number

    @property
    def newest_number(self) -> int:
        """Number of the last report, if the rank has ended: groups missing in it were destroyed. Otherwise 0."""
        return self.report.number if self.ended is not None and self.report is not None else 0

    def note_destroyed(self, group: str, site: str) -> None:
        """Note that a span shows that the rank has destroyed the group."""
        self.destroyed_at.pop(group, None)
        if len(self.destroyed_at) >= MAX_DESTROYED:
            del self.destroyed_at[next(iter(self.destroyed_at))]
        self.destroyed_at[group] = site

    @property
    def weight(self) -> int:
        """About how much memory its report and its texts take, in `UNIT`."""
        texts = (self.stack, self.exception, self.exception_site, self.site, self.file, self.exit_message)
        size = sum(map(getsizeof, texts)) + sum(map(getsizeof, self.place)) + len(self.kill_reason)
        raised = [text for one in self.thread_exceptions for text in (one.exception, one.site, one.thread)]
        size += UNIT * len(self.thread_exceptions) + sum(map(getsizeof, raised))
        size += sum([UNIT + getsizeof(item.name) for item in self.contents.overdue]) + UNIT * len(self.decisions)
        size += sum([UNIT + len(one.calls) + sum(map(len, chain.from_iterable(one.places))) for one in self.lines])
        size += sum([UNIT + getsizeof(one.group) + getsizeof(one.step) for one in self.patterns])
        report = self.report
        if report is not None:
            size += sum(map(len, (report.doing, report.running_here, report.site, report.exit_site)))
            size += UNIT * (len(report.addresses) + len(report.unreached) + len(report.round_trips))
            size += sum([UNIT + len(one.file) + len(one.function) for one in report.left_loops])
        return self.contents.held + max(0, size - 2 * UNIT) // UNIT

    def weigh(self, usage: Usage) -> None:
        """Weigh the rank's report and texts, and cut them if all ranks together hold too much."""
        limit, weight = usage.room_for_reports(MAX_REPORTED), self.weight
        if usage.reported - self.held + weight > limit:
            usage.refused["reported_calls"] += 1
            is_far = usage.reported > limit + limit // 4
            self.cut(1 if is_far else CUT_CALLS, CUT_FAR if is_far else CUT_STACK)
            weight = self.weight
        usage.reported += weight - self.held
        self.held = weight

    def cut(self, calls: int, length: int) -> None:
        """Keep ``calls`` calls, with only their operations' names, and ``length`` characters of each text."""
        said = self.contents
        more = len(said.inflight[calls:])
        self.contents = Contents(
            [bare(call) for call in said.inflight[:calls]],
            [bare(call) for call in said.failed[-calls:]],
            None if said.last is None else bare(said.last),
            overdue=tuple([item._replace(name=item.name[:length]) for item in said.overdue]),
            within=None if said.within is None else said.within._replace(name=said.within.name[:length]),
        )
        self.stack, self.exception, self.thread_exceptions = self.stack[:length], self.exception[:length], ()
        self.exit_message, self.kill_reason = self.exit_message[:length], self.kill_reason[:length]
        self.decisions, self.lines, self.patterns = (), (), ()
        if self.report is not None:
            more += self.report.in_flight_more
            self.report = replace(
                self.report,
                in_flight_more=more,
                doing=self.report.doing[:length],
                addresses=(),
                unreached=(),
                round_trips=(),
                left_loops=(),
                patterns=(),
            )

    def take_counts(self, given: RankReport, now: float, lag: float) -> None:
        """Take a report that differs from the latest one only in counts and times."""
        self.arrived, self.lag = now, lag
        if self.report is not None:
            self.report = replace(
                self.report,
                number=given.number,
                idle_s=given.idle_s,
                starved_s=given.starved_s,
                step=given.step,
                step_s=given.step_s,
                interval_s=given.interval_s,
                unlisted_s=given.unlisted_s,
            )
        if given.activity:
            self.note_within(reported_within(given.activity))

    def take_report(self, report: RankReport, contents: Contents, now: float, lag: float) -> None:
        """Make ``report`` the latest one."""
        self.arrived, self.lag, self.report = now, lag, replace(report, **ELSEWHERE)
        self.contents = contents if contents.fetched is None else contents._replace(fetched=None)
        self.note_within(contents.within)
        self.has_gaps = self.has_gaps or (report.dropped is not None and report.dropped.hook_errors > 0)
        self.thread_exceptions = contents.thread_exceptions or self.thread_exceptions
        if contents.decisions:
            self.decisions, self.decided_in = contents.decisions, report.step

    def note_within(self, within: Overdue | None) -> None:
        """Note a section within its limit, if the latest report has one."""
        if within is not None:
            self.within, self.within_at = within, self.sent

    def note_look(self, site: str) -> None:
        """Note the call site at which the rank was when its stacks were requested; "": not known."""
        if site:
            self.looks = (*self.looks, site)[-LOOKS:]

    @property
    def host(self) -> str:
        return self.place.host

    def note_place(self, place: Place, replica: str) -> None:
        """Note where the rank runs. Telemetry without a host does not replace a place that has one."""
        if place.host or not self.place.host:
            self.place = place
        self.replica = replica or self.replica

    def note_completed(self, enqueued_at: float | None) -> None:
        """Note that a report shows a completed call. ``enqueued_at``: monotonic; None: not known."""
        if enqueued_at is not None and (self.completed_at is None or enqueued_at > self.completed_at):
            self.completed_at = enqueued_at

    def keep_stack(self, report: RankReport) -> None:
        """Keep the latest stack, site, lines and patterns until a report shows that the rank has moved."""
        stack = report.stack or (report.exception.stack if report.exception is not None else "")
        moves = moves_of(report)
        has_moved = self.ended is None and moves != self.stack_moves
        self.patterns = report.patterns or (() if has_moved else self.patterns)
        self.lines = tuple([CallLines(*astuple(one)) for one in report.lines]) or (() if has_moved else self.lines)
        if stack:
            self.stack = stack
        elif has_moved:
            self.stack = self.site = ""
        self.site = report.site or (site_of(stack) if stack else self.site)
        self.stack_moves = moves if self.stack or self.site or self.patterns or self.lines else 0
        if report.python_blocked is not None or not self.stack:
            self.python_blocked = bool(report.python_blocked)

    def keep_ending(self, report: RankReport) -> bool:
        """Keep how the rank ended. Later reports may say less, and a process ends only once.

        Return True if the ending was not known before.
        """
        exception, exit_ = report.exception, report.exit
        if exception is not None:
            self.exception = exception.text or self.exception
            self.exception_site = exception.raised_at or self.exception_site
        self.is_exiting = self.is_exiting or report.is_exiting
        self.exit_message = report.exit_message or self.exit_message
        self.exit_site = report.exit_site or self.exit_site
        if (exception is None and exit_ is None) or self.ended is not None:
            return False
        before, self.ending = self.ending, Ending.RAISED
        if exit_ is not None:
            self.ended, self.signal = self.sent, exit_.signal or None
            self.exit_code = exit_.code if exit_.is_known else None
            self.kill_reason, self.ended_for_peer = exit_.reason, exit_.is_for_peer
            self.ending = process_ending(
                signal=self.signal,
                exit_code=self.exit_code,
                clean=exit_.is_clean,
                exception="" if exception is None else exception.text,
                exit_message=self.exit_message,
            )
        return self.ending is not before
