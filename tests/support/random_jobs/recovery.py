"""Random jobs whose ranks catch the failure of a call, with a second fault while they recover.

First a rank is late, stays away or ends, or the calls of all ranks are refused. The other ranks' calls fail at their
timeout, or at once if a rank's end closes their connections. These ranks catch the failure and continue in the same
groups, in a new group of the remaining ranks, or as another run (they destroy their groups and create the default
group again). Then another rank stops, leaves out a call, or makes a wrong call.

A right verdict names both faulty ranks, each once: the second if its fault shows, and the first unless a rank has
completed a call since.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from otel_fr.match import CallState, Ending, Evidence, Finding, Group, NewGroup, Rank, Signature, diagnose
from tests.support.random_jobs.endings import fail, first_open, natural_ends, peers_fail, raised
from tests.support.random_jobs.faults import Fault, random_fault
from tests.support.random_jobs.programs import LENGTHS, Op, Program, random_program, simple
from tests.support.random_jobs.several_faults import STOPS, WRONG, shown, stop_at_begin
from tests.support.random_jobs.simulation import NEVER, Behaviour, Simulation, Stops
from tests.support.random_jobs.trials import random_view
from tests.support.random_jobs.views import WINDOW, Ends, View, evidence

LATE, REFUSED, MISSING = "late", "refused", "missing call"
FIRST = (LATE, LATE, *STOPS, REFUSED)
SECOND = (*STOPS, *STOPS, MISSING, *WRONG)
SAME, NEW, RUN = "same groups", "new group", "new run"
EARLY = 0.4
"""Of the second faults that stop a rank, the share that strikes before the rank's first call of the recovery."""


@dataclass(slots=True, kw_only=True)
class Judged:
    """The evidence of one run, the ranks that a verdict on it must name, and the ranks that it may name."""

    evidence: Evidence
    must_name: frozenset[int]
    may_name: frozenset[int]

    def verdict(self) -> tuple[str, list[Finding]]:
        """Return what is wrong with the verdict ("": nothing), and the findings."""
        findings = diagnose(self.evidence)
        causes = [finding for finding in findings if finding.caused_by is None]
        named = Counter(rank for finding in causes for rank in finding.culprit_ranks)
        for what, ranks in (
            ("not named", self.must_name - named.keys()),
            ("wrongly named", named.keys() - self.may_name),
            ("named twice", {rank for rank, count in named.items() if count > 1}),
        ):
            if ranks:
                return f"{what}: {sorted(ranks)}", findings
        return "", findings


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Attributes:
    first, second: kinds of the faults. how: the way of recovery. is_early: the second fault strikes before the first
        call of the recovery.
    runs: the runs to judge; both if the job recovers as another run.
    """

    first: str
    second: str
    how: str
    is_early: bool
    runs: tuple[Judged, ...]

    def wrong(self) -> str:
        """Return what is wrong with the verdicts; "": nothing."""
        return "; ".join(filter(None, (one.verdict()[0] for one in self.runs)))


def recovery(seed: int, layout: str) -> Recovery | None:
    """Make a job from the seed; None: its faults have no place, or do not show."""
    rng = random.Random(f"recovery {layout} {seed}")
    program = random_program(rng, layout)
    kind = rng.choice(FIRST)
    first = _first_fault(rng, program, kind)
    if first is None:
        return None
    behaviour = Behaviour(depth=1, one_queue=True, on_mismatch=rng.choice(["hang", "fail"]))
    job = Simulation(program, behaviour, rng, first.stops)
    job.run()
    left = [rank for rank in program.calls if rank != first.rank or kind in (LATE, REFUSED)]
    waiting = {rank for rank in left if first_open(job, rank) is not None}
    if len(left) < 3 or set(left) - waiting - {first.rank}:
        return None
    ends = natural_ends(job, first) if kind in STOPS else Ends()
    starts = _fail(job, first, kind, ends, rng)
    how = rng.choice([SAME, NEW, NEW, RUN])
    if how == SAME and not (len(left) == program.world and _is_level(job)):
        how = NEW
    again = _again(rng, program, left, how)
    second = random_fault(rng, again, rng.choice(SECOND))
    if second is None or (kind != REFUSED and first.rank in left and _number(left, how, first.rank) == second.rank):
        return None
    is_early = second.rank in second.stops.host and rng.random() < EARLY
    if is_early:
        second = stop_at_begin(second)
    view = replace(random_view(rng, behaviour), ages=True, ring=1 << 30)
    over = _Second(job, first, second, kind, view, rng)
    runs = over.in_new_run(starts, ends, left) if how == RUN else over.in_same_run(starts, ends)
    if not runs[-1].must_name:
        return None
    return Recovery(first=kind, second=second.kind, how=how, is_early=is_early, runs=runs)


def _first_fault(rng: random.Random, program: Program, kind: str) -> Fault | None:
    if kind in STOPS:
        return random_fault(rng, program, kind)
    found = random_fault(rng, program, STOPS[0])
    if found is None or kind == LATE:
        return found
    world = program.groups[0]
    own = [i for i, op in enumerate(program.calls[found.rank]) if op.group is world and not op.is_message]
    if not own:
        return None
    found.at = rng.choice(own)
    number = own.index(found.at) + 1
    found.stops = Stops(hung=frozenset({(world.id, number)}))
    return found


def _fail(job: Simulation, first: Fault, kind: str, ends: Ends, rng: random.Random) -> dict[int, float]:
    """Let the calls in flight fail. Returns rank -> the time when it continues."""
    job.timeout = rng.uniform(1.2, 5.0) * WINDOW
    starts: dict[int, float] = {}
    for rank in job.calls:
        call = first_open(job, rank)
        if call is None or (rank == first.rank and kind in STOPS):
            continue
        at, error = call.enqueued + job.timeout, "timeout"
        if kind == REFUSED and call.place in first.stops.hung:
            at, error = call.enqueued + 0.001, "error"
        elif first.ending and first.rank in call.members:
            at, error = max(call.enqueued, ends.at[first.rank]) + rng.uniform(0.001, 0.01), "error"
        fail(call, at, error)
        starts[rank] = at + rng.uniform(0.01, 1.0)
    if kind == LATE:
        at = max(starts.values()) + rng.uniform(0.01, 1.5 * WINDOW)
        call = job.record(first.rank, job.program.calls[first.rank][len(job.calls[first.rank])], at)
        fail(call, at + 0.01, "error")
        starts[first.rank] = at + rng.uniform(0.02, 1.0)
    return starts


def _is_level(job: Simulation) -> bool:
    """Return True if the members of each group have made equally many calls, so that they can continue in it."""
    counts: dict[str, Counter[int]] = {}
    for rank, calls in job.calls.items():
        for call in calls:
            if call.op.is_message:
                return False
            counts.setdefault(call.op.group.id, Counter())[rank] += 1
    return all(len({counts[g.id][r] for r in g.ranks}) == 1 for g in job.program.groups if g.id in counts)


def _number(left: list[int], how: str, rank: int) -> int:
    """Return the rank's number during the recovery."""
    return left.index(rank) if how == RUN else rank


def _again(rng: random.Random, program: Program, left: list[int], how: str) -> Program:
    """Return the calls of the remaining ranks during and after the recovery."""
    if how == SAME:
        return program
    ranks = tuple(range(len(left)) if how == RUN else left)
    world = Group("r0", "0" if how == RUN else "90", "recovered", ranks)
    halves = [Group(f"r{i}", f"9{i}", "half", half) for i, half in ((1, ranks[::2]), (2, ranks[1::2]))]
    groups = [world] if len(ranks) < 4 or rng.random() < 0.5 else [world, *halves]
    again = Program("recovery", len(ranks), groups, {rank: [] for rank in ranks})
    if how == NEW:
        made = Signature("new_group", new_group=NewGroup(world.name, world.description, ranks))
        creation = Op(program.groups[0], made, made, host_waits=True, site="train.py:110 recover")
        for calls in again.calls.values():
            calls.append(creation)
    if rng.random() < 0.6:
        again.collective(world, Signature("barrier"), host_waits=True, site="train.py:112 recover")
    if rng.random() < 0.5:
        again.collective(world, simple("broadcast", 4096, world), site="train.py:114 recover")
    for step in range(rng.randint(1, 6)):
        for group in groups[1:]:
            again.collective(group, simple("all_gather_into_tensor", 8, group), step=step, site="train.py:120 step")
        for line in range(rng.randint(1, 2)):
            made = simple("all_reduce", LENGTHS[line], world)
            again.collective(world, made, step=step, site=f"train.py:{122 + line} step")
    return again


class _Second:
    """Plays the second fault, and says which ranks must be named then."""

    def __init__(self, job: Simulation, first: Fault, second: Fault, kind: str, view: View, rng: random.Random) -> None:
        self._job, self._first, self._second = job, first, second
        self._kind, self._view, self._rng = kind, view, rng

    def in_same_run(self, starts: dict[int, float], ends: Ends) -> tuple[Judged, ...]:
        job, first = self._job, self._first
        failed = [call for calls in job.calls.values() for call in calls if call.state is CallState.FAILED]
        made = len(job.calls[self._second.rank])
        job.resume(self._second.program, self._second.stops, starts)
        self._second.at += made
        found, _ = self._happens(job, ends)
        have_gone_on = any(
            other.state is CallState.COMPLETED and other.record > call.record
            for call in failed
            for other in job.calls[call.rank]
        )
        own = frozenset[int]() if self._kind == REFUSED else frozenset({first.rank})
        must, may = self._second_of(job, found)
        lasts = first.ending or not have_gone_on
        return (Judged(evidence=found, must_name=must | (own if lasts else frozenset()), may_name=may | own),)

    def in_new_run(self, starts: dict[int, float], ends: Ends, left: list[int]) -> tuple[Judged, ...]:
        job, first, second = self._job, self._first, self._second
        for rank in left:
            ends.at[rank], ends.infos[rank] = starts[rank], Rank(rank, ending=Ending.CLEAN, exit_code=0)
        new = Simulation(second.program, job.behaviour, self._rng, second.stops)
        new.timeout = job.timeout
        new.resume(second.program, second.stops, {i: starts[rank] for i, rank in enumerate(left)})
        found, now = self._happens(new, Ends())
        before = evidence(job, self._view, now, ends)
        for rank in left:
            for progress in before.ranks[rank].progress.values():
                progress.destroyed = True
        own = frozenset[int]() if self._kind == REFUSED else frozenset({first.rank})
        must, may = self._second_of(new, found)
        old = Judged(evidence=before, must_name=own if self._kind in STOPS else frozenset(), may_name=own)
        return old, Judged(evidence=found, must_name=must, may_name=may)

    def _happens(self, job: Simulation, ends: Ends) -> tuple[Evidence, float]:
        """Return the evidence some time after nothing moves, or after the ranks gave up again; and the time."""
        own = natural_ends(job, self._second)
        ends.at |= own.at
        ends.infos |= own.infos
        last = max([job.clock, *ends.at.values()])
        if self._rng.random() < 0.4:
            last = self._end_again(job, ends, last)
        now = last + self._rng.uniform(1.2, 5.0) * WINDOW
        return evidence(job, self._view, now, ends), now

    def _end_again(self, job: Simulation, ends: Ends, last: float) -> float:
        """Let the calls in flight fail again, which ends their ranks. Returns the time of the last end."""
        if self._second.ending in ("killed", "raised"):
            return peers_fail(job, self._second, ends, self._rng)
        for rank in job.calls:
            call = first_open(job, rank)
            if call is not None and rank not in ends.at:
                last = max(last, at := call.enqueued + job.timeout)
                fail(call, at, "timeout")
                ends.at[rank], ends.infos[rank] = at, raised(rank, call, "Timed out waiting for recv operation")
        return last

    def _second_of(self, job: Simulation, found: Evidence) -> tuple[frozenset[int], frozenset[int]]:
        """Return the ranks that must, and that may, be named for the second fault."""
        second = self._second
        if second.kind != MISSING:
            return shown(job, second, found)
        assert second.op is not None
        own, new = frozenset({second.rank}), second.op.signature.new_group
        members = second.op.group.ranks if new is None else new.ranks
        if len(members) == 2:
            return frozenset(), own | frozenset(members)
        is_open = any(call.ended == NEVER for calls in job.calls.values() for call in calls)
        return own if is_open else frozenset(), own
