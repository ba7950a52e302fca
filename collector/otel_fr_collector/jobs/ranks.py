"""What the collector knows of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import getsizeof

from otel_fr.match import UNPLACED, Decision, Ending, Overdue, Place, ThreadException
from otel_fr.rank_report import DEFAULT_INTERVAL
from otel_fr.stacks import site_of
from otel_fr_collector.jobs.calls import UNIT, CompactCall, lighten
from otel_fr_collector.jobs.lateness import Delay
from otel_fr_collector.jobs.own_time import OwnTime
from otel_fr_collector.jobs.rank_reports import KeptReport, bytes_of_threads

GRACE = 1.5
"""Seconds after the time at which the next report of a rank was due, from which the rank counts as silent."""
SILENCE = DEFAULT_INTERVAL + GRACE
"""The same since the last report, of a rank that reports each second."""
DELAY = 0.5
"""Seconds that a report may take to arrive: a stack is outdated only if the rank moved so much later than it."""


DESTROYED = -1
"""In place of the number of a report: the rank has destroyed the group."""
LOOKS = 3
"""Stacks of a rank that moves which are kept, by their lines: one shows one moment."""
MAX_DESTROYED = 64
"""Groups of one rank for which the place of their destruction is kept; its report names as many (otel_fr/monitor)."""


@dataclass(slots=True)
class RankState:
    """One rank; times in seconds.

    Attributes:
        arrived: the collector's monotonic clock at its latest report.
        lag: by which that came later than its reports do at best (`otel_fr_collector.jobs.lateness`).
    """

    rank: int
    report: KeptReport | None = None
    arrived: float = 0.0
    lag: float = 0.0
    ending: Ending = Ending.RUNNING
    ended: float | None = None
    within: Overdue | None = None
    """The last one that a report of it had (`Rank.within`), and when that was sent."""
    within_at: float = 0.0
    looks: tuple[str, ...] = ()
    """Where it was when its stacks were asked for, the latest `LOOKS`."""
    place: Place = UNPLACED
    replica: str = ""
    stack: str = ""
    stack_arrived: float = 0.0
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
    decided_in: int | None = None
    file: str = ""
    has_gaps: bool = False
    """A report showed errors of its recording."""
    progress: dict[str, list[int]] = field(default_factory=dict)
    """By group id: last number enqueued, last completed, from reports and spans alike; and the number of the last
    report in which the group was live, or `DESTROYED`; the last number of a message and of a collective that a report
    showed enqueued (-1: no report did)."""
    latest: dict[str, CompactCall] = field(default_factory=dict)
    """By group id: the newest collective a span shows completed."""
    destroyed_at: dict[str, str] = field(default_factory=dict)
    """By group id: the call site that destroyed it, of the newest ones."""
    previous_record: int = -1
    previous_end: int = 0
    """Of the newest call that a span shows: its record, and its end in Unix nanoseconds."""
    completed_at: float | None = None
    """When it enqueued the newest call that reports show to have completed (monotonic)."""
    held: int = 0
    """Size of its report and its texts, see `run.MAX_REPORTED`."""
    own_time: OwnTime = field(default_factory=OwnTime, repr=False)
    delay: Delay = field(default_factory=Delay, repr=False)

    def is_silent(self, now: float, floor: float = 0.0, behind: float = 0.0) -> bool:
        """No report for longer than `silence`, and no known end.

        Args:
            floor: no silence is counted before this time.
            behind: reports that were sent less than so many seconds ago may be on their way.
        """
        return self.ended is None and self.silent_for(now, floor, behind) > self.silence

    def silent_for(self, now: float, floor: float, behind: float) -> float:
        """Seconds without a report. Arguments as of `is_silent`."""
        return min(now - max(self.arrived, floor), now - behind - max(self.sent, floor))

    @property
    def sent(self) -> float:
        """When its latest report was sent: as it arrived, but for its lag."""
        return self.arrived - self.lag

    def measure_lag(self, stamp: float, now: float) -> float:
        """The lag of a report that is newer than those before. ``stamp``: by its sender's clock, 0: not known."""
        return self.delay.lag(stamp, now) if stamp else 0.0

    @property
    def silence(self) -> float:
        """Seconds without a report after which it counts as silent: it says when the next one comes."""
        return SILENCE if self.report is None else self.report.interval + GRACE

    @property
    def has_outdated_texts(self) -> bool:
        """It has ended, or has texts of a time when it did not move, which a report that shows it move ends."""
        return self.ended is not None or self.python_blocked or bool(self.stack or self.site)

    def has_destroyed(self, group: str) -> bool:
        """It has destroyed a group that is in `progress`; a rank that has ended: it did not have the group any more."""
        last = self.progress[group][2]
        newest = self.report.number if self.ended is not None and self.report is not None else 0
        return last == DESTROYED or 0 < last < newest

    def note_destroyed(self, group: str, site: str) -> None:
        """A span shows that the rank has destroyed the group."""
        self.destroyed_at.pop(group, None)
        if len(self.destroyed_at) >= MAX_DESTROYED:
            del self.destroyed_at[next(iter(self.destroyed_at))]
        self.destroyed_at[group] = site

    def messages(self, group: str) -> int | None:
        """The number of its last send or receive in a group that is in `progress`; None: a span shows that it went on
        since the report that has this number."""
        own = self.progress[group]
        return own[3] if own[4] == own[0] else None

    def text_weight(self, report: KeptReport) -> int:
        """What its texts take besides those of its report, in units of one call."""
        stack = "" if self.stack in (report.stack, report.exception_stack) else self.stack
        texts = (stack, self.exception, self.exception_site, self.site, self.file, *self.place, self.exit_message)
        size = max(0, sum(map(getsizeof, texts)) - 2 * UNIT)
        if self.thread_exceptions is not report.thread_exceptions:
            size += bytes_of_threads(self.thread_exceptions)
        if self.decisions is not report.decisions:
            size += UNIT * len(self.decisions)
        return size // UNIT

    def cut(self, length: int) -> None:
        """Cut its texts to ``length`` characters."""
        self.stack, self.exception, self.thread_exceptions = self.stack[:length], self.exception[:length], ()
        self.decisions = ()

    def take_report(self, report: KeptReport, now: float, lag: float) -> KeptReport | None:
        """Make it the latest report; returns the one before."""
        before, self.report, self.arrived, self.lag = self.report, report, now, lag
        self.note_within(report, self.sent)
        self.has_gaps = self.has_gaps or report.hook_errors > 0
        if report.decisions:
            self.decisions, self.decided_in = report.decisions, report.step
        return before

    def note_within(self, report: KeptReport, sent: float) -> None:
        """What its report says of a section within its limit. ``sent``: when that was so."""
        if report.within is not None:
            self.within, self.within_at = report.within, sent

    def note_look(self, site: str) -> None:
        """Its stacks were asked for, and it was there."""
        if site:
            self.looks = (*self.looks, site)[-LOOKS:]

    @property
    def host(self) -> str:
        return self.place.host

    def note_place(self, place: Place, replica: str = "") -> None:
        """Where it runs, as its latest telemetry says; some of it may come without a host."""
        if place.host or not self.place.host:
            self.place = place
        self.replica = replica or self.replica

    def note_file(self, path: str) -> None:
        """The rank has written a flight-recorder file; empty: it has not."""
        self.file = path or self.file

    def note_latest(self, group: str, call: CompactCall) -> None:
        """The newest collective of the group that a span shows completed."""
        self.latest[group] = lighten(call) if call[1].is_heavy else call

    def note_newest(self, record: int, end: int) -> None:
        """Of the newest call that a span shows: its record, and its end in Unix nanoseconds."""
        self.previous_record, self.previous_end = record, end

    def note_completed(self, enqueued_at: float | None) -> None:
        """A report shows that a call completed; ``enqueued_at``: monotonic, None: not known."""
        if enqueued_at is not None and (self.completed_at is None or enqueued_at > self.completed_at):
            self.completed_at = enqueued_at

    def set_held(self, size: int) -> int:
        """Set the size of its report; returns the difference to the report before."""
        more, self.held = size - self.held, size
        return more

    def keep_stack(self, report: KeptReport, now: float) -> None:
        """The last stack and site hold until the rank is seen to have moved."""
        stack = report.stack or report.exception_stack
        if stack:
            self.stack, self.stack_arrived = stack, now
        elif self.ended is None and report.idle is not None and report.idle + DELAY < now - self.stack_arrived:
            self.stack = self.site = ""
        self.site = report.site or (site_of(stack) if stack else self.site)
        if report.python_blocked is not None or not self.stack:
            self.python_blocked = bool(report.python_blocked)

    def keep_ending(self, report: KeptReport, now: float) -> bool:
        """Keep how the rank ended. Later reports may say less, and a process ends only once. True: it is news."""
        self.exception = report.exception or self.exception
        self.exception_site = report.exception_site or self.exception_site
        self.is_exiting = self.is_exiting or report.is_exiting
        self.exit_message = report.exit_message or self.exit_message
        self.exit_site = report.exit_site or self.exit_site
        self.thread_exceptions = report.thread_exceptions or self.thread_exceptions
        if report.ending is None or self.ended is not None:
            return False
        is_news = report.ending is not self.ending
        self.ending = report.ending
        if report.has_exited:
            self.ended, self.exit_code, self.signal = now, report.exit_code, report.signal
            self.kill_reason, self.ended_for_peer = report.kill_reason, report.ended_for_peer
        return is_news
