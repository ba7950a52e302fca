"""Random jobs with two or three independent faults in different ranks, and which ranks a right verdict names.

A fault must be named if it shows in one of these ways:

* The faulty rank ended by it.
* The oldest call in flight of another rank lacks the faulty rank.
* The evidence has calls that do not fit together. Of two mismatches in one group only the first counts.

A rank that is stuck on its host may be named, but need not be, if another faulty rank ended: it may wait for that rank,
for example at a store. A verdict that names another rank as well is wrong, unless the evidence does not show which rank
of a call is wrong: the call has two ranks, or two faulty ranks got it wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from otel_fr.match import CallState, Evidence, Finding, diagnose
from tests.support.random_jobs.endings import first_open, natural_ends
from tests.support.random_jobs.faults import Fault, random_fault
from tests.support.random_jobs.programs import random_program
from tests.support.random_jobs.simulation import NEVER, Place, SimulatedCall, Simulation, Stops
from tests.support.random_jobs.trials import random_behaviour, random_view
from tests.support.random_jobs.views import WINDOW, View, by_place, evidence

STOPS = ("stuck on the host", "Python blocked", "killed", "exception")
WRONG = ("wrong size", "wrong dtype", "wrong root", "wrong reduce op")
KINDS = (*STOPS, *STOPS, *WRONG)


@dataclass(slots=True, kw_only=True)
class SeveralFaults:
    """Attributes:
    faults: in the order in which they were put into the program.
    must_name: the ranks whose faults show. may_name: these ranks, and others that the evidence does not excuse.
    """

    faults: tuple[Fault, ...]
    job: Simulation
    evidence: Evidence
    must_name: frozenset[int]
    may_name: frozenset[int]


def several_faults(seed: int, layout: str, count: int = 2, *, at_begin: bool = False) -> SeveralFaults | None:
    """Make a job with ``count`` faults from the seed; None: not all of them have a place, or none shows.

    Args:
        at_begin: ranks stop before their first call.
    """
    rng = random.Random(f"{'begin ' if at_begin else ''}{'two' if count == 2 else count} {layout} {seed}")
    program = random_program(rng, layout)
    faults: list[Fault] = []
    for _ in range(count):
        fault = random_fault(rng, program, rng.choice(KINDS))
        if fault is None:
            return None
        if at_begin and fault.rank in fault.stops.host:
            fault = stop_at_begin(fault)
        faults.append(fault)
        program = fault.program
    if len({fault.rank for fault in faults}) < count:
        return None
    stops = Stops()
    for fault in faults:
        stops.host |= fault.stops.host
        stops.killed |= fault.stops.killed
        stops.inside |= fault.stops.inside
    behaviour = random_behaviour(rng)
    job = Simulation(program, behaviour, rng, stops)
    job.run()
    for rank in stops.host.keys() - job.stopped_at.keys():
        del stops.host[rank]  # another fault keeps the rank from coming so far
    ends = natural_ends(job, *faults)
    now = max([job.clock, *ends.at.values()]) + rng.uniform(1.2, 5.0) * WINDOW
    view = random_view(rng, behaviour)
    found = evidence(job, view, now, ends, {})
    must, may = frozenset[int](), frozenset[int]()
    for fault in _in_order(job, *faults):
        shows, doubtful = shown(job, fault, found)
        has_ended = any(other.ending for other in faults if other is not fault)
        if _may_wait(job, fault, view) or (has_ended and not (fault.ending or fault.blocks_python or fault.category)):
            shows = frozenset()
        if not (fault.category is not None and _group(fault) in {_group(f) for f in faults if f.rank in must}):
            must |= shows
        may |= doubtful
    if not must:
        return None
    return SeveralFaults(faults=tuple(faults), job=job, evidence=found, must_name=must, may_name=may | must)


def is_right(trial: SeveralFaults) -> tuple[bool, list[Finding]]:
    """Return True if the verdict names all ranks that it must and no rank that it may not; and the findings."""
    findings = diagnose(trial.evidence)
    named = {rank for finding in findings for rank in finding.culprit_ranks}
    return trial.must_name <= named <= trial.may_name, findings


def stop_at_begin(fault: Fault) -> Fault:
    """Return the fault moved to before the rank's first call."""
    return replace(fault, at=0, stops=replace(fault.stops, host={fault.rank: 0}, inside=set()))


def _may_wait(job: Simulation, fault: Fault, view: View) -> bool:
    """Return True if the faulty rank may wait for another faulty rank, or may have ended because of it: it has a call
    that did not complete, or its backend does not show when calls end."""
    if fault.category is not None or fault.rank not in job.stops.host:
        return False
    is_open = any(call.state is not CallState.COMPLETED for call in job.calls[fault.rank])
    return is_open or not (view.ends_shown or fault.blocks_python or fault.ending)


def _group(fault: Fault) -> str | None:
    return fault.op.group.id if fault.category is not None and fault.op is not None else None


def _in_order(job: Simulation, *faults: Fault) -> list[Fault]:
    """Return the faults in the order in which the ranks made the faulty calls."""

    def when(fault: Fault) -> float:
        calls = job.calls[fault.rank]
        return calls[fault.at].enqueued if fault.at < len(calls) else NEVER

    return sorted(faults, key=when)


def shown(job: Simulation, fault: Fault, found: Evidence) -> tuple[frozenset[int], frozenset[int]]:
    """Return the faulty rank if its fault shows, and all ranks that may be named for it."""
    places = by_place(job.calls)
    own = frozenset({fault.rank})
    if fault.category is None:
        if fault.rank not in job.stops.host:
            return frozenset(), frozenset()
        waited = [call for rank in job.calls if (call := first_open(job, rank)) is not None]
        is_awaited = any(_lacks(places[call.place], fault.rank) for call in waited)
        return (own if fault.ending or is_awaited else frozenset()), own
    if fault.at >= len(job.calls[fault.rank]):
        return frozenset(), frozenset()
    place = job.calls[fault.rank][fault.at].place
    known = [job.calls[call.rank][call.record] for call in found.calls]
    here = [call for call in known if call.place == place]
    if len({call.op.token for call in here}) < 2:
        return frozenset(), own | _members(places, place)
    is_clear = len(here) > 2 and sum(call.op.token == job.calls[fault.rank][fault.at].op.token for call in here) == 1
    others = [call for call in here if call.rank != fault.rank]
    is_clear = is_clear and len({call.op.token for call in others}) == 1
    return own, own if is_clear else own | _members(places, place)


def _members(places: dict[Place, list[SimulatedCall]], place: Place) -> frozenset[int]:
    return frozenset(places[place][0].members)


def _lacks(calls: list[SimulatedCall], rank: int) -> bool:
    """Return True if the rank is a member of this instance and has not joined it."""
    joined = {call.rank for call in calls}
    return rank in calls[0].members and rank not in joined
