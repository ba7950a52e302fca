"""Random jobs with one fault each, ready to be judged: what happened, and the evidence at one moment."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from otel_fr.match import CallState, Ending, Evidence
from tests.support.random_jobs.endings import abort, join_late, natural_ends, peers_fail
from tests.support.random_jobs.faults import (
    FAULTS,
    FEWER_BATCHES,
    OF_MESSAGES,
    STRAGGLER,
    THREAD_ALONE,
    Fault,
    random_fault,
)
from tests.support.random_jobs.programs import LAYOUTS, Program, random_program
from tests.support.random_jobs.simulation import Behaviour, Simulation, Stops
from tests.support.random_jobs.views import WINDOW, Ends, View, evidence

ABORTED = "aborted at the timeout"
_ABORTED_FAULTS = ("stuck on the host", "stuck on the host", "Python blocked", "missing call", "missing step", "killed")

KINDS = (*FAULTS, ABORTED)

MAX_LAG = 1.0
"""Largest difference, in seconds, between the ages of two ranks' records: monitors report once a second."""
BELIEVED_LAG = 0.3
"""The same for ranks that wait, or are waited for: with older reports the collector does not believe a finding
(`otel_fr_collector.timeline.FRESH_BEFORE`)."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """One job with one fault, ready to be judged.

    Attributes:
        kind: of `KINDS`. truth: the faulty rank; None: no rank is at fault.
        must_name: the verdict must name the faulty rank. False: the rank is late, or nobody is at fault, so a verdict
            that names nobody is right.
        visible: the evidence shows the fault.
    """

    seed: int
    layout: str
    kind: str
    fault: Fault
    behaviour: Behaviour
    job: Simulation
    view: View
    ends: Ends
    now: float
    evidence: Evidence
    truth: int | None
    must_name: bool
    visible: bool


def random_behaviour(rng: random.Random) -> Behaviour:
    depth = 1 if rng.random() < 0.5 else rng.choice([2, 4, 16, 64])
    mismatch = rng.choice(["hang", "complete", "fail"] if depth == 1 else ["hang", "hang", "complete"])
    return Behaviour(depth=depth, one_queue=depth == 1 or rng.random() < 0.6, on_mismatch=mismatch)


def random_view(rng: random.Random, behaviour: Behaviour) -> View:
    form = rng.choice(["files", "live"])
    if form == "live":
        return View(form="live", ends_shown=behaviour.depth == 1 or rng.random() < 0.8)
    ring = rng.choice([max(16, 2 * behaviour.depth), 128, 1 << 30, 1 << 30])
    return View(form="files", ring=ring, ages=rng.random() < 0.6)


def random_lags(rng: random.Random, program: Program, most: float = MAX_LAG) -> dict[int, float]:
    """Return the age of each rank's newest record, up to ``most`` seconds; empty: all are up to date."""
    return {rank: rng.uniform(0.0, most) for rank in program.calls} if rng.random() < 0.7 else {}


def random_trial(seed: int, kind: str, layout: str) -> Trial | None:
    """Make a job with one fault from the seed; None: no call of the program allows the fault."""
    rng = random.Random(f"{kind} {layout} {seed}")
    fault = random_fault(rng, random_program(rng, layout), rng.choice(_ABORTED_FAULTS) if kind == ABORTED else kind)
    if fault is None:
        return None
    behaviour = random_behaviour(rng)
    too_late = kind == STRAGGLER and behaviour.depth == 1 and rng.random() < 0.5
    if too_late:  # its peers give up before the rank arrives
        fault.stops = Stops(host={fault.rank: fault.at})
    job = Simulation(fault.program, behaviour, rng, fault.stops)
    job.run()
    ends = natural_ends(job, fault)
    last = max([job.clock, *ends.at.values()])
    if kind == ABORTED:
        last = abort(job, fault, ends, rng)
    elif too_late:
        last = join_late(job, fault, ends, rng)
    elif fault.ending and behaviour.depth == 1 and rng.random() < 0.5:
        last = peers_fail(job, fault, ends, rng)
    now = last + rng.uniform(1.2, 5.0) * WINDOW
    view = random_view(rng, behaviour)
    lags: dict[int, float] = {}
    is_moving = kind in (STRAGGLER, THREAD_ALONE) and not too_late
    if is_moving:  # judged while it runs, from the records of each rank by then
        view.ages = True
        lags = random_lags(rng, fault.program, MAX_LAG if fault.is_innocent else BELIEVED_LAG)
        begin, end = 0.0, job.clock
        if kind == STRAGGLER:
            begin = job.left_at[fault.rank]
            end = begin + fault.stops.away[fault.rank][1]
        now = rng.uniform(begin, end + 2 * MAX_LAG)
    found = evidence(job, view, now, ends, lags)
    return Trial(
        seed=seed, layout=layout, kind=kind, fault=fault, behaviour=behaviour, job=job, view=view, ends=ends, now=now,
        evidence=found, truth=None if fault.is_innocent else fault.rank,
        must_name=not is_moving or (not fault.is_innocent and _is_missed(job, fault, found, now)),
        visible=is_visible(job, fault, found),
    )  # fmt: skip


def trial_with_ages(trial: Trial) -> Trial:
    """Return the trial with ages of calls and without lags between ranks."""
    view = replace(trial.view, ages=True)
    return replace(trial, view=view, evidence=evidence(trial.job, view, trial.now, trial.ends))


def _is_missed(job: Simulation, fault: Fault, found: Evidence, now: float) -> bool:
    """Return True if the records show a waiting rank, and the late rank's records must be from its absence."""
    since, seconds = job.left_at[fault.rank], fault.stops.away[fault.rank][1]
    waits = any(call.state is CallState.IN_FLIGHT and (call.age or 0.0) >= WINDOW for call in found.calls)
    return waits and since + WINDOW + MAX_LAG <= now <= since + seconds


def is_visible(job: Simulation, fault: Fault, found: Evidence) -> bool:
    """Return True if the evidence has a call that did not complete, an end by a fault, or calls that do not fit."""
    if any(call.state is not CallState.COMPLETED for call in found.calls):
        return True
    if any(info.ending not in (Ending.RUNNING, Ending.CLEAN) for info in found.ranks.values()):
        return True
    tokens: dict[object, set[object]] = {}
    own: set[object] = set()
    for call in found.calls:
        simulated = job.calls[call.rank][call.record]
        tokens.setdefault(simulated.place, set()).add(simulated.op.token)
        if call.rank == fault.rank:
            own.add(simulated.place)
    return any(len(tokens[place]) > 1 for place in own)


def cells(number: int) -> Iterable[tuple[int, str, str]]:
    """Yield one round of jobs: (seed, kind of fault, layout). Each kind has equally many, spread over its layouts."""
    for kind in KINDS:
        layouts = layouts_of(kind)
        each = len(LAYOUTS) // len(layouts)
        yield from ((number * each + more, kind, layout) for layout in layouts for more in range(each))


def layouts_of(kind: str) -> tuple[str, ...]:
    """Return the layouts with calls that allow this fault."""
    if kind == FEWER_BATCHES:
        return ("tp_dp_pp",)
    return ("pairs", "tp_dp_pp") if kind in OF_MESSAGES else tuple(LAYOUTS)
