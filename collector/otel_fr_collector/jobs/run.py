"""The state of one run, bounded in size: each rank's latest report, and each group's incomplete instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.match import UNENDED, CallState, Ending, Group, Place
from otel_fr.match.lateness import Lateness
from otel_fr.presentation import job_title
from otel_fr.rank_report import RankReport, ReportedGroup
from otel_fr.waits.blocks import StragglerLimits
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import MEMBER_BYTES, Interner, RankCall
from otel_fr_collector.jobs.fingerprints import Differences
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.history import History, Sample, take
from otel_fr_collector.jobs.lateness import Attention, Lags
from otel_fr_collector.jobs.levels import Levels
from otel_fr_collector.jobs.numbers import Numbers
from otel_fr_collector.jobs.rank_reports import Contents, MemberReader, read
from otel_fr_collector.jobs.ranks import DESTROYED, RankState
from otel_fr_collector.jobs.ras import RasAnswer
from otel_fr_collector.jobs.same_reports import says_the_same
from otel_fr_collector.jobs.step_rate import StepRate
from otel_fr_collector.jobs.unlisted import MAX_ASKED, is_unseen
from otel_fr_collector.jobs.usage import GROUP_BYTES, PROGRESS_BYTES, RANK_BYTES, Usage, size_of
from otel_fr_collector.jobs.waits import Waits
from otel_fr_collector.jobs.workload import WorkloadRequest

MAX_RANKS_PER_RUN, MAX_RANKS = identity.MAX_RANKS, 2 * identity.MAX_RANKS
"""Ranks of one run, and of all runs. `usage.MAX_KEPT` may be reached before this or any other limit over all runs."""
MAX_GROUPS_PER_RUN = 32_768
MAX_GROUPS = 65_536
MAX_MEMBERS = 1_000_000
"""Ranks in the member lists of all groups of all runs. If there is no room for a list, its members are unknown."""
MAX_PROGRESS_ENTRIES = 1_048_576
"""Pairs of a rank and a group whose progress is kept, over all runs: 100,000 ranks in 10 groups."""


class RunId(NamedTuple):
    """A run's identity. ``run``: `identity.run_id`, or made from job and attempt if the ranks sent none."""

    job: str
    attempt: int
    run: str


@dataclass(slots=True)
class Run:
    """One run of one job.

    Attributes:
        resource: text attributes of the ranks' OTLP resource, for the telemetry that the collector itself sends.
        mismatch_since, bad_end_since: when the first mismatch or bad end that is not judged yet was seen; None: none.
        waiting: ranks whose latest report has a call in flight, or an overdue heartbeat or section.
        has_news: something arrived since the last judgement. files_noted: how often ranks reported a new file.
        lags: lateness of reports. attention: lateness of the collector. levels: the ranks' `progress`, as columns.
        members, progress_entries: total length of its groups' member lists, and of its ranks' `progress`.
        is_replaced: not judged: the job continues in another run, or on new nodes. steps: speed of its training steps.
        behind: groups by id that have instances still to be compared (`GroupState.compare_pieces`).
        requests: what ranks have asked for their node or job. is_sampled: spans of some calls are missing.
        lacks_ranks: there was no room for some ranks. differences: where ranks made different calls.
        to_ask: ranks to ask for a full report. Their brief reports lack something that no other rank has reported.
        numbers: calls, bytes and durations, as monitors count them. history: samples of its communication's totals.
        ras: the latest answer of NCCL's RAS; None: none. tenant: see `otel_fr_collector.network.tokens`.
    """

    id: RunId
    first_seen: float
    last_seen: float
    world_size: int | None = None
    resource: dict[str, str] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    waiting: dict[int, RankState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    mismatch_since: float | None = None
    bad_end_since: float | None = None
    has_news: bool = False
    files_noted: int = 0
    members: int = 0
    progress_entries: int = 0
    levels: Levels = field(default_factory=Levels, repr=False)
    is_replaced: bool = False
    tenant: str = ""
    behind: dict[str, GroupState] = field(default_factory=dict)
    requests: dict[int, WorkloadRequest] = field(default_factory=dict)
    is_sampled: bool = False
    lacks_ranks: bool = False
    differences: Differences = field(default_factory=Differences)
    to_ask: set[int] = field(default_factory=set)
    steps: StepRate = field(default_factory=StepRate)
    numbers: Numbers | None = None
    history: History = field(default_factory=History)
    lags: Lags = field(default_factory=Lags)
    attention: Attention = field(default_factory=Attention)
    ras: RasAnswer | None = None
    usage: Usage = field(default_factory=Usage)
    straggler_limits: StragglerLimits = field(default_factory=StragglerLimits)

    @property
    def title(self) -> str:
        """The job's name as users see it."""
        return job_title(self.id.job, self.resource.get(names.SERVICE_NAME))

    @property
    def weight(self) -> int:
        """Size of its incomplete instances, in units of one call."""
        return sum(group.weight for group in self.groups.values())

    @property
    def size(self) -> int:
        """Bytes that the run takes, without calls and reports."""
        return size_of(len(self.ranks), len(self.groups), self.members, self.progress_entries)

    @property
    def known_for(self) -> float:
        """Seconds between the run's first and last telemetry."""
        return self.last_seen - self.first_seen

    @property
    def call_count(self) -> int:
        return sum(group.call_count for group in self.groups.values())

    @property
    def stall(self) -> float:
        """The shortest stall time of the ranks, in seconds; 5 if none has reported."""
        return min((r.report.stall_s for r in self.ranks.values() if r.report is not None), default=5.0)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the world are known."""
        return bool(self.ranks) and (self.world_size is None or len(self.ranks) >= self.world_size)

    @property
    def ended_clean(self) -> bool:
        """Whether every rank of the world has ended well."""
        return self.is_whole and all(rank.ending is Ending.CLEAN for rank in self.ranks.values())

    def is_live(self, now: float) -> bool:
        """Whether some rank has not ended and still reports."""
        floor, behind = self.unheard(now)
        return any(r.ended is None and not r.is_silent(now, floor, behind) for r in self.ranks.values())

    def unheard(self, now: float) -> tuple[float, float]:
        """Return the arguments ``floor`` (a monotonic time) and ``behind`` (seconds) of `RankState.is_silent`."""
        behind = max(self.lateness(now), self.lags.quiet(now)) + self.lags.answered_after(now)
        return max(self.attention.floor, self.lags.floor), min(behind, timeline.MAX_BEHIND)

    def lateness(self, now: float) -> float:
        """Seconds by which the collector may be behind: what ranks sent within them may not be processed yet."""
        return min(max(self.lags.recent(now), self.attention.behind()), timeline.MAX_BEHIND)

    def rank_state(self, rank: int) -> RankState | None:
        """Get or create the rank's state; None: there is no room for another rank."""
        state = self.ranks.get(rank)
        if state is None:
            usage, held = self.usage, len(self.ranks)
            if held >= MAX_RANKS_PER_RUN or usage.ranks >= MAX_RANKS or not usage.has_room(RANK_BYTES, self.size):
                usage.refuse("ranks", held, min(MAX_RANKS, MAX_RANKS_PER_RUN * usage.runs), self.size)
                self.lacks_ranks = True
                return None
            state = self.ranks[rank] = RankState(rank)
            self.usage.ranks += 1
        return state

    def restore(self, world_size: int | None, resource: dict[str, str], ranks: Iterable[RankState]) -> None:
        """Restore the state from before a restart, as far as there is room. What has been reported since stays."""
        self.world_size, self.resource = self.world_size or world_size, self.resource or resource
        for state in ranks:
            known = self.rank_state(state.rank)
            if known is not None and known.report is None:
                told, state.progress = state.progress, known.progress
                self.ranks[state.rank] = state
                for group, numbers in told.items():
                    own = self.note_progress(state, group, numbers[0], numbers[1])
                    if own is not None:
                        own[2:5] = numbers[2:5]

    def note_origin(
        self,
        rank: int,
        *,
        place: Place,
        world_size: int | None,
        resource: dict[str, str],
        now: float,
        replica: str = "",
    ) -> None:
        """Store what a request's resource says about the rank and the run."""
        self.last_seen, self.resource = now, self.resource or resource
        if world_size is not None:
            self.world_size = world_size
        state = self.rank_state(rank)
        if state is not None:
            state.note_place(place, replica)

    def note_mismatch(self, now: float) -> None:
        """Record that calls mismatch. The run is judged once this has settled."""
        if self.mismatch_since is None:
            self.mismatch_since = now

    def group_state(self, group: Group, size: int) -> GroupState | None:
        """Get or create the group's state; None: there is no room for another group."""
        state = self.groups.get(group.id)
        if state is None:
            usage, held = self.usage, len(self.groups)
            if held >= MAX_GROUPS_PER_RUN or usage.groups >= MAX_GROUPS or not usage.has_room(GROUP_BYTES, self.size):
                usage.refuse("groups", held, min(MAX_GROUPS, MAX_GROUPS_PER_RUN * usage.runs), self.size)
                return None
            waits = Waits(self.straggler_limits, usage, is_off=self.is_sampled)
            state = self.groups[group.id] = GroupState(replace(group, ranks=()), waits=waits)
            self.usage.groups += 1
        if not state.group.ranks:
            if not group.ranks and size and size == self.world_size and size <= identity.MAX_RANKS:
                # The group has all ranks, in rising order: it need not wait for a report, which may never come.
                group = replace(group, ranks=tuple(range(size)))
            usage, count = self.usage, len(group.ranks)
            if usage.members + count > MAX_MEMBERS or (count and not usage.has_room(count * MEMBER_BYTES, self.size)):
                usage.refuse("members", self.members, MAX_MEMBERS, self.size)
                group = replace(group, ranks=())
            self.members += len(group.ranks)
            self.usage.members += len(group.ranks)
            state.learn(group, size)
        return state

    def learn_groups(self, given: RankReport, some: Sequence[ReportedGroup], members: MemberReader) -> None:
        """Take the names and members of some of a report's groups, so that `apply` need not.

        Raises:
            ValueError: the ranks of a group cannot be read. None of these groups was taken.
        """
        groups = self.groups
        new = [one for one in some if (known := groups.get(one.id)) is None or not known.group.ranks]
        for one in members.groups(new) if new else ():
            group = self.group_state(one, len(one.ranks))
            if given.is_brief and group is not None and not group.group.ranks and not one.ranks:
                self.to_ask.add(given.rank)

    def note_progress(self, state: RankState, group: str, enqueued: int, completed: int) -> list[int] | None:
        """Record that the rank has reached at least these numbers in the group; None: there is no room for them."""
        usage, own = self.usage, state.progress.get(group)
        if own is None:
            if usage.progress_entries >= MAX_PROGRESS_ENTRIES or not usage.has_room(PROGRESS_BYTES, self.size):
                usage.refuse("progress", self.progress_entries, MAX_PROGRESS_ENTRIES, self.size)
                return None
            own = state.progress[group] = [0, 0, 0, 0, -1, self.levels.add(state.rank, group)]
            self.progress_entries += 1
            usage.progress_entries += 1
        own[0] = self.levels.enqueued[own[5]] = max(own[0], enqueued)
        own[1] = self.levels.completed[own[5]] = max(own[1], completed)
        return own

    def apply(
        self,
        given: RankReport,
        interner: Interner,
        *,
        now: float,
        wall: float = 0.0,
        stamp: float = 0.0,
        knows_groups: bool = False,
    ) -> int | None:
        """Merge one rank's report into the run.

        Args:
            knows_groups: `learn_groups` was called with all of its groups.
            wall: Unix time. stamp: when the report was made, in seconds by the rank's clock; 0: not known.

        Returns:
            The size of the report's contents, in `UNIT`; 0 if only counts and times were new. None if the report is
            older than the latest one, or if there is no room for the rank.

        Raises:
            ValueError: a group has too many members, or its ranks cannot be read. Nothing of the report was taken.
        """
        known = self.ranks.get(given.rank)
        if known is not None and known.report is not None and given.number <= known.report.number:
            return None
        lag = 0.0 if known is None else known.measure_lag(stamp, now)
        contents = None
        if known is None or not says_the_same(known, given, now - lag):
            contents = read(given, interner, now=now - lag, wall=wall - lag)
        state = known or self.rank_state(given.rank)
        if state is None:
            return None
        if not knows_groups:
            self.learn_groups(given, given.groups, MemberReader(interner))
        if known is None:
            state.measure_lag(stamp, now)
        before = state.contents
        if contents is None:
            state.take_counts(given, now, lag)
        else:
            state.take_report(given, contents, now, lag)
        self.lags.note(lag, now, state.delay.held)
        self.last_seen = now
        self.has_news = True
        if given.step is not None:
            self.steps.note(given.rank, given.step, now)
        if given.sampled is not None and not self.is_sampled:
            self._note_sampled()
        self._take_counts(state, given, now)
        if len(self.to_ask) < MAX_ASKED and is_unseen(given, self.groups):
            self.to_ask.add(given.rank)
        if contents is None:
            return 0
        self._take_contents(state, given, contents, before, now)
        return contents.held

    def _take_counts(self, state: RankState, given: RankReport, now: float) -> None:
        """Update the rank's progress in its groups."""
        groups, progress, number = self.groups, state.progress, given.number
        enqueued, completed = self.levels.enqueued, self.levels.completed
        for one in given.groups:
            group = groups.get(one.id)
            if group is None:  # there was no room for it
                continue
            if group.uncompared and group.group.ranks:
                self.behind[group.group.id] = group
            own = progress.get(one.id)
            if own is None:
                own = self.note_progress(state, group.group.id, 0, 0)
                if own is None:
                    continue
            if one.enqueued > own[0]:
                own[0] = enqueued[own[5]] = one.enqueued
            if one.completed > own[1]:
                own[1] = completed[own[5]] = one.completed
            own[2] = DESTROYED if one.is_destroyed else number
            own[3], own[4] = one.p2p_enqueued, -1 if one.is_destroyed else one.enqueued
            if one.fingerprint:
                self.note_fingerprint(group, state.rank, one.fingerprint, now)

    def _take_contents(
        self, state: RankState, given: RankReport, contents: Contents, before: Contents, now: float
    ) -> None:
        """Take a report's contents, without counts and times. ``before``: the contents of the previous report."""
        self.waiting.pop(state.rank, None)
        if contents.inflight or contents.overdue:
            self.waiting[state.rank] = state
        fetched, last = contents.fetched, contents.last
        calls = [*contents.failed, *contents.inflight, *([last] if last else [])]
        if fetched is not None and self.differences.take(given.rank, fetched):
            asked = (call for call in fetched.calls if call.group == fetched.group and call.stream == "collective")
            calls = [*asked, *calls]
        self._end_calls(state, before.inflight)
        for call in calls:
            group = self.groups.get(call.group)
            if group is not None and not call.signature.destroys and group.add(call):
                self.note_mismatch(now)
        state.keep_stack(given)
        self.note_file(state.rank, given.file)
        is_news = state.keep_ending(given)
        state.weigh(self.usage)
        failed_before = {call.record for call in before.failed} if contents.failed else set()
        is_bad = is_news or any(call.record not in failed_before for call in contents.failed)
        if is_bad and self.bad_end_since is None and not self.ended_clean:
            self.bad_end_since = now

    def note_fingerprint(self, group: GroupState, rank: int, given: Sequence[int], now: float) -> None:
        """Compare a rank's fingerprint of a group (not empty), unless the rank's recording had errors."""
        if self.ranks[rank].has_gaps:
            return
        found = group.fingerprints.note(rank, given, now)
        if found is not None:
            self.differences.note(group.group.id, found)

    def _note_sampled(self) -> None:
        """Stop looking for stragglers: spans of some calls are missing, so it is unknown who comes last."""
        self.is_sampled = True
        for group in self.groups.values():
            group.waits.is_off = True
            group.waits.blocks.forget()

    def sample(self, now: float) -> Sample:
        """Return the totals of the run's communication so far."""
        return take(now, self.numbers, self.groups.values(), self.steps.per_second(now))

    def keep_sample(self, now: float) -> None:
        """Add a sample to the history, if one is due."""
        if self.history.is_due(now) and self.groups and not self.ended_clean:
            self.history.add(self.sample(now))

    def slowest(self, now: float) -> Iterator[tuple[GroupState, Lateness]]:
        """Yield each group that waits for the same rank again and again, with that rank's lateness. Nothing if the run
        has ended or stands still, because earlier delays cost no time then."""
        latest, groups = self.history.latest(self.sample(now)), self.groups.values()
        is_still = latest is not None and latest.wait is not None and latest.wait <= 0
        if self.ended_clean or is_still or any(group.waits.is_open(now) for group in groups):
            return
        yield from ((one, found) for one in groups if one.waits.blocks.kept and (found := one.waits.blocks.slowest()))

    def compare_pieces(self) -> bool:
        """Compare some calls that came before their group's members were known. Return True if more are left."""
        if self.behind:
            group_id, group = next(iter(self.behind.items()))
            if group.compare_pieces():
                self.note_mismatch(self.last_seen)
            if not group.uncompared:
                del self.behind[group_id]
        return bool(self.behind)

    def note_file(self, rank: int, path: str) -> None:
        """Record the path of a flight-recorder file that a rank has written, if it is new."""
        if path and rank in self.ranks and self.ranks[rank].file != path:
            self.ranks[rank].file, self.files_noted = path, self.files_noted + 1

    def _end_calls(self, state: RankState, before: Iterable[RankCall]) -> None:
        """End the calls that were in flight ``before`` and are no longer listed. Failed calls have their own list."""
        last = state.contents.last
        if last is not None and last.state is CallState.COMPLETED:
            state.note_completed(last.enqueued_at)
        if not before:
            return
        listed = {call.record for call in state.contents.inflight}
        is_cut = state.report is not None and state.report.in_flight_more
        newest = max(listed, default=-1) if is_cut else None
        for call in before:
            if call.record in listed or call.signature.destroys or (newest is not None and call.record > newest):
                continue
            group = self.groups.get(call.group)
            known = group.known(call) if group is not None else None
            failed = next((one for one in state.contents.failed if one.record == call.record), None)
            if failed is None:
                state.note_completed(call.enqueued_at)
            if group is None or known is None or known.state not in UNENDED:
                continue
            if group.add(failed or known._replace(state=CallState.COMPLETED)):
                self.note_mismatch(self.last_seen)
