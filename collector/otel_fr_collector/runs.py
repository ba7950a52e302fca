"""What the collector knows of each run: per rank the latest report, per group the calls not yet complete. Bounded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from otel_fr.match import Ending, Group, State
from otel_fr.stacks import site_of
from otel_fr_collector.calls import UNENDED, Part
from otel_fr_collector.groups import MAX_DISAGREEING, GroupState
from otel_fr_collector.report import Report

MAX_RUNS = 256
MAX_RANKS_PER_RUN = 16_384
MAX_GROUPS_PER_RUN = 4_096
MAX_PARTS = 1_000_000
"""Calls kept over all runs, about 0.3 kB each; beyond it the run with the most loses its oldest."""
SILENCE = 2.5
"""Seconds without a report after which a rank counts as silent: two reports and a half."""
IDLE_FORGET = 3_600.0
"""Seconds without a word after which a run is forgotten."""
CLEAN_FORGET = 60.0
"""Seconds after which a run that ended well is forgotten; late spans come within that time."""


@dataclass(frozen=True)
class RunId:
    """Which run a request speaks of. ``run``: `identity.run_id`, or made of job and attempt where none was sent."""

    job: str
    attempt: int
    run: str


@dataclass(slots=True)
class RankState:
    """One rank. ``arrived``: the collector's monotonic clock at its latest report; times in seconds."""

    rank: int
    report: Report | None = None
    arrived: float = 0.0
    ending: Ending = Ending.RUNNING
    ended: float | None = None
    host: str = ""
    stack: str = ""
    stack_arrived: float = 0.0
    site: str = ""
    python_blocked: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exception: str = ""
    exception_site: str = ""
    file: str = ""
    standings: dict[str, list[int]] = field(default_factory=dict)
    """By group id: last number enqueued, last completed, from reports and spans alike."""
    latest: dict[str, Part] = field(default_factory=dict)
    """By group id: the newest collective a span shows completed."""
    previous_record: int = -1
    previous_end: float = 0.0

    def is_silent(self, now: float, floor: float = 0.0) -> bool:
        """No report for longer than `SILENCE` and no word of its end. ``floor``: silence counts from then at most."""
        return self.ended is None and now - max(self.arrived, floor) > SILENCE

    def stand(self, group: str, enqueued: int, completed: int) -> None:
        own = self.standings.setdefault(group, [0, 0])
        own[0] = max(own[0], enqueued)
        own[1] = max(own[1], completed)


@dataclass(slots=True)
class Run:
    """One run of one job.

    Attributes:
        resource: text attributes of the job's resource, for what the collector itself sends about it.
        mismatch_since, ended_since: when an unjudged disagreement / bad end was first seen; None: nothing waits.
        has_news: something arrived since the last diagnosis.
        diagnosed: when the run was last diagnosed.
        silence_floor: nobody's silence counts from before this time.
        is_over: a newer attempt of its job has taken its place; it is judged no more.
    """

    id: RunId
    first_heard: float
    last_heard: float
    world_size: int | None = None
    resource: dict[str, str] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    mismatch_since: float | None = None
    ended_since: float | None = None
    has_news: bool = False
    diagnosed: float = float("-inf")
    silence_floor: float = 0.0
    is_over: bool = False

    @property
    def parts(self) -> int:
        return sum(group.parts for group in self.groups.values())

    @property
    def stall(self) -> float:
        """The shortest stall time of its ranks, seconds."""
        return min((r.report.stall for r in self.ranks.values() if r.report is not None), default=5.0)

    @property
    def ended_clean(self) -> bool:
        """Every rank of the world has ended well."""
        if not self.ranks or (self.world_size is not None and len(self.ranks) < self.world_size):
            return False
        return all(rank.ending is Ending.CLEAN for rank in self.ranks.values())

    def is_live(self, now: float) -> bool:
        """Some rank has not ended and still reports."""
        return any(r.ended is None and not r.is_silent(now, self.silence_floor) for r in self.ranks.values())

    def rank(self, rank: int) -> RankState | None:
        """The rank's state, made at need; None: the run has more ranks than are kept."""
        state = self.ranks.get(rank)
        if state is None and len(self.ranks) < MAX_RANKS_PER_RUN:
            state = self.ranks[rank] = RankState(rank)
        return state

    def group(self, group: Group, size: int) -> GroupState | None:
        state = self.groups.get(group.id)
        if state is None:
            if len(self.groups) >= MAX_GROUPS_PER_RUN:
                return None
            state = self.groups[group.id] = GroupState(group)
        if not group.ranks and size and size == self.world_size:
            # All ranks, and torch keeps members in rising order: no need to wait for a report, which may never come.
            group = replace(group, ranks=tuple(range(size)))
        state.learn(group, size)
        return state

    def add_span(self, part: Part, group: Group, size: int, now: float) -> None:
        """Take in one call that a span tells of."""
        state = self.rank(part.rank)
        place = self.group(group, size)
        if state is None or place is None:
            return
        self.last_heard = now
        self.has_news = True
        if part.issued_wall is not None and part.duration is not None:
            ended = part.issued_wall + part.duration
            if state.previous_record == part.record - 1:
                part = part._replace(gap=max(0.0, part.issued_wall - state.previous_end))
            if part.record > state.previous_record:
                state.previous_record = part.record
                state.previous_end = ended
        if part.stream == "collective":
            done = part.sequence_id if part.state is State.COMPLETED else 0
            state.stand(part.group, part.sequence_id, done)
            latest = state.latest.get(part.group)
            if done and (latest is None or latest.sequence_id <= done):
                state.latest[part.group] = part
        self._place(place, part, now)

    def add_report(self, report: Report, now: float) -> bool:
        """Take in one rank's report. False: an older one that came late, or a rank too many."""
        state = self.rank(report.rank)
        if state is None or (state.report is not None and report.number <= state.report.number):
            return False
        before, state.report, state.arrived = state.report, report, now
        self.last_heard = now
        self.has_news = True
        for item in report.groups:
            if item.group.id:
                place = self.group(item.group, len(item.group.ranks))
                if place is not None and place.place_pieces() and self.mismatch_since is None:
                    self.mismatch_since = now
                state.stand(item.group.id, item.enqueued, item.completed)
        self._end_calls(before, report)
        for part in [*report.failed, *report.inflight, *([report.last] if report.last else [])]:
            place = self.groups.get(part.group)
            if place is not None:
                self._place(place, part, now)
        self._keep_stack(state, report, now)
        state.file = report.file or state.file
        failed_before = {part.record for part in before.failed} if before else set()
        if any(part.record not in failed_before for part in report.failed):
            self._ended_badly(now)
        self._keep_ending(state, report, now)
        return True

    def _keep_ending(self, state: RankState, report: Report, now: float) -> None:
        """How a rank ended is said once; later reports may say less, and a process ends only once."""
        state.exception = report.exception or state.exception
        state.exception_site = report.exception_site or state.exception_site
        if report.ending is None or state.ended is not None:
            return
        if report.ending is not state.ending:
            state.ending = report.ending
            self._ended_badly(now)
        if report.has_exited:
            state.ended, state.exit_code, state.signal = now, report.exit_code, report.signal

    def _ended_badly(self, now: float) -> None:
        if self.ended_since is None and not self.ended_clean:
            self.ended_since = now

    def _end_calls(self, before: Report | None, report: Report) -> None:
        """Calls that were in flight and are no longer listed have ended; if badly, the report says so elsewhere."""
        if before is None:
            return
        listed = {part.record for part in report.inflight}
        newest = max(listed, default=-1) if report.inflight_more else None
        for part in before.inflight:
            if part.record in listed or (newest is not None and part.record > newest):
                continue
            place = self.groups.get(part.group)
            known = place.known(part) if place is not None else None
            if place is not None and known is not None and known.state in UNENDED:
                failed = next((p for p in report.failed if p.record == part.record), None)
                place.add(failed or known._replace(state=State.COMPLETED))

    def _keep_stack(self, state: RankState, report: Report, now: float) -> None:
        """The last stack and site hold until the rank is seen to have moved."""
        stack = report.stack or report.exception_stack
        if stack:
            state.stack, state.stack_arrived = stack, now
        elif state.ended is None and report.idle is not None and report.idle < now - state.stack_arrived:
            state.stack = state.site = ""
        state.site = report.site or (site_of(stack) if stack else state.site)
        if report.python_blocked is not None or not state.stack:
            state.python_blocked = bool(report.python_blocked)

    def _place(self, place: GroupState, part: Part, now: float) -> None:
        if place.add(part) and place.disagreeing <= MAX_DISAGREEING and self.mismatch_since is None:
            self.mismatch_since = now


class Runs:
    """All runs, the least recently heard forgotten first."""

    def __init__(self, max_runs: int = MAX_RUNS, max_parts: int = MAX_PARTS) -> None:
        self._max_runs = max_runs
        self._max_parts = max_parts
        self.by_id: dict[RunId, Run] = {}
        self.evicted_runs = 0
        self.evicted_parts = 0

    def get(self, run_id: RunId, now: float) -> Run:
        """The run, made at need; it becomes the most recently heard."""
        run = self.by_id.pop(run_id, None)
        if run is None:
            run = Run(run_id, now, now)
            while len(self.by_id) >= self._max_runs:
                del self.by_id[next(iter(self.by_id))]
                self.evicted_runs += 1
        self.by_id[run_id] = run
        return run

    def trim(self) -> None:
        """Hold the bound on calls kept."""
        counts = {run_id: run.parts for run_id, run in self.by_id.items()}
        total = sum(counts.values())
        while total > self._max_parts:
            run_id = max(counts, key=lambda key: counts[key])
            place = max(self.by_id[run_id].groups.values(), key=lambda group: group.parts)
            gone = sum(place.evict() for _ in range(max(1, len(place.open) // 8)))
            if not gone:
                return
            counts[run_id] -= gone
            total -= gone
            self.evicted_parts += gone

    def forget(self, now: float) -> list[Run]:
        """Drop the runs that are over; returns them."""
        over = [
            run
            for run in self.by_id.values()
            if now - run.last_heard > IDLE_FORGET or (run.ended_clean and now - run.last_heard > CLEAN_FORGET)
        ]
        for run in over:
            del self.by_id[run.id]
        return over

    def shift_silence(self, now: float) -> None:
        """The collector itself was held up: nobody's silence before now counts."""
        for run in self.by_id.values():
            run.silence_floor = now
