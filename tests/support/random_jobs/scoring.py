"""Random jobs judged: the verdict compared with the truth, for one seed at a time.

What counts as right. A verdict is *right* if its first cause names the faulty rank and no cause names another. It is
*ambiguous*, which is accepted, where a second explanation with a single fault fits the same evidence, if it names the
faulty rank, and besides it only ranks of that explanation:

* A wrong argument of a call that belongs to two ranks (a group of two, or a message), or of which only two ranks'
  records are left: the other rank may as well be the one that is wrong.
* A missing or extra call, or a rank that ended early without an error, where other ranks' calls fit together just as
  well with one change of that rank's calls (`explanations`): in a group of two, one rank's missing call is the other's
  extra one.
* No rank completed the collective that the faulty rank's device does not complete: any member's device, or the network,
  fits. The same holds for a message, whose end a backend may show only to a thread that waits for it. Then no rank may
  be named, and the verdict must be about a collective that the faulty rank is in.
* Calls in flight have no ages in the evidence, and each rank's oldest one is joined by all its members, or waits for
  ranks of which that holds: they may have been running, and an open question is accepted.

A verdict without a finding is *silent* where a rank waits or ended by a fault, and right where nothing of the fault is
in the evidence (a reduction with the wrong operator of which the rings kept nothing).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from otel_fr.match import CallState, Ending, Evidence, Finding, diagnose, open_questions
from tests.support.random_jobs.endings import abort, natural_ends, peers_fail
from tests.support.random_jobs.explanations import explains
from tests.support.random_jobs.faults import FAULTS, Fault, random_fault
from tests.support.random_jobs.programs import LAYOUTS, random_program
from tests.support.random_jobs.simulation import NEVER, Behaviour, SimulatedCall, Simulation
from tests.support.random_jobs.views import WINDOW, Ends, View, by_place, evidence

ABORTED = "aborted at the timeout"
_ABORTED_FAULTS = ("stuck on the host", "stuck on the host", "Python blocked", "missing call", "missing step", "killed")

KINDS = (*FAULTS, ABORTED)


_OPEN = (CallState.IN_FLIGHT, CallState.UNKNOWN, CallState.FAILED)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One job with one fault, ready to be judged.

    Attributes:
        kind: of `KINDS`. truth: the faulty rank. also: ranks that a second explanation names.
        nameless: no rank can be named. visible: the evidence shows something of the fault.
    """

    seed: int
    layout: str
    kind: str
    fault: Fault
    job: Simulation
    view: View
    ends: Ends
    now: float
    evidence: Evidence
    truth: int
    also: frozenset[int]
    nameless: bool
    visible: bool


@dataclass(slots=True, kw_only=True)
class Score:
    """``outcome``: "right", "ambiguous", "silent" or "wrong"; "unseen": nothing of the fault is in the evidence.

    ``accused_wrongly``: ranks that are named and belong to no explanation that fits.
    """

    seed: int
    layout: str
    kind: str
    outcome: str
    truth: int
    named: tuple[int, ...]
    accused_wrongly: tuple[int, ...]
    summary: str


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


def random_trial(seed: int, kind: str, layout: str) -> Trial | None:
    """The job of that seed; None: it has no call where the fault can be put."""
    rng = random.Random(f"{kind} {layout} {seed}")
    fault = random_fault(rng, random_program(rng, layout), rng.choice(_ABORTED_FAULTS) if kind == ABORTED else kind)
    if fault is None:
        return None
    behaviour = random_behaviour(rng)
    job = Simulation(fault.program, behaviour, rng, fault.stops)
    job.run()
    ends = natural_ends(job, fault)
    last = job.clock
    if kind == ABORTED:
        last = abort(job, fault, ends, rng)
    elif fault.ending and behaviour.depth == 1 and rng.random() < 0.5:
        last = peers_fail(job, fault, ends, rng)
    now = last + rng.uniform(1.2, 5.0) * WINDOW
    view = random_view(rng, behaviour)
    found = evidence(job, view, now, ends)
    also, nameless = _second_explanation(job, fault, view)
    return Trial(
        seed=seed, layout=layout, kind=kind, fault=fault, job=job, view=view, ends=ends, now=now, evidence=found,
        truth=fault.rank, also=also, nameless=nameless, visible=_is_visible(job, fault, found),
    )  # fmt: skip


def _second_explanation(job: Simulation, fault: Fault, view: View) -> tuple[frozenset[int], bool]:
    if fault.rank in fault.stops.device:
        record, takes_part = fault.stops.device[fault.rank]
        calls = job.calls[fault.rank]
        nobody = not takes_part or record >= len(calls) or all(c.ended == NEVER for c in _peers(job, calls[record]))
        return frozenset(), nobody or not view.ends_shown or calls[record].op.is_message
    op = fault.op
    if op is None:
        return frozenset(), False
    recorded = _recorded(job, fault, view)
    if len(recorded) == 2 or fault.category is None:
        return (recorded - {fault.rank} if len(recorded) == 2 else frozenset()), False
    if op.is_message:
        return frozenset({op.peer} if op.peer is not None else ()), False
    if len(op.group.ranks) == 2:
        return frozenset(op.group.ranks) - {fault.rank}, False
    return frozenset(), False


def _peers(job: Simulation, call: SimulatedCall) -> list[SimulatedCall]:
    return [c for rank, calls in job.calls.items() if rank != call.rank for c in calls if c.place == call.place]


def _recorded(job: Simulation, fault: Fault, view: View) -> frozenset[int]:
    """The ranks of which the first collective is recorded in which the faulty rank's call differs."""
    kept = view.ring if view.form == "files" else 1 << 30
    known = {rank: calls[max(0, len(calls) - kept) :] for rank, calls in job.calls.items()}
    for calls in sorted(by_place(known).values(), key=lambda calls: min(c.enqueued for c in calls)):
        ranks = frozenset(call.rank for call in calls)
        if fault.rank in ranks and len({call.op.token for call in calls}) > 1:
            return ranks
    return frozenset()


def _is_visible(job: Simulation, fault: Fault, found: Evidence) -> bool:
    """A rank waits, one ended by a fault, or calls that do not fit together are in the evidence."""
    if any(call.state in _OPEN for call in found.calls):
        return True
    if any(info.ending not in (Ending.RUNNING, Ending.CLEAN) for info in found.ranks.values()):
        return True
    tokens: dict[object, set[object]] = {}
    own: set[object] = set()
    place_of = {(c.rank, c.record): c for calls in job.calls.values() for c in calls}
    for call in found.calls:
        simulated = place_of[call.rank, call.record]
        tokens.setdefault(simulated.place, set()).add(simulated.op.token)
        if call.rank == fault.rank:
            own.add(simulated.place)
    return any(len(tokens[place]) > 1 for place in own)


def judge(trial: Trial) -> tuple[Score, list[Finding]]:
    """The verdict of the match engine, and what it is worth."""
    findings = diagnose(trial.evidence)
    causes = [finding for finding in findings if finding.caused_by is None]
    _add_explanations(trial, causes)
    named = tuple(sorted({rank for finding in causes for rank in finding.culprit_ranks}))
    score = Score(
        seed=trial.seed,
        layout=trial.layout,
        kind=trial.kind,
        outcome=_outcome(trial, causes, named),
        truth=trial.truth,
        named=named,
        accused_wrongly=tuple(rank for rank in named if rank != trial.truth and rank not in trial.also),
        summary=causes[0].summary if causes else "",
    )
    return score, findings


def _add_explanations(trial: Trial, causes: list[Finding]) -> None:
    """Of the ranks named, those whose missing or extra calls explain the job as well. (Only these are looked at.)"""
    fault = trial.fault
    if fault.category is not None or (fault.op is None and fault.ending != "clean"):
        return
    named = {rank for finding in causes for rank in finding.culprit_ranks} - {fault.rank, *trial.also}
    steps = fault.kind == "missing step"
    trial.also |= {rank for rank in named if explains(trial.job, trial.ends, rank, steps=steps)}


def _may_be_running(trial: Trial) -> bool:
    """Calls in flight have no ages, and no rank is known to wait for one that waits for none."""
    oldest: dict[int, SimulatedCall] = {}
    for call in sorted(trial.evidence.calls, key=lambda call: call.record, reverse=True):
        if call.state is CallState.FAILED or (call.state in _OPEN and call.age is not None):
            return False
        if call.state in _OPEN:
            oldest[call.rank] = trial.job.calls[call.rank][call.record]
    joined = {place: {call.rank for call in calls} for place, calls in by_place(trial.job.calls).items()}
    missing: set[int] = set()
    for first in oldest.values():
        missing |= {*(first.place[1:3] if len(first.place) == 4 else first.op.group.ranks)} - joined[first.place]
    return missing <= oldest.keys()


def _outcome(trial: Trial, causes: list[Finding], named: tuple[int, ...]) -> str:
    if not causes:
        if not trial.visible:
            return "unseen"
        return "ambiguous" if _may_be_running(trial) and open_questions(trial.evidence) else "silent"
    if named == (trial.truth,) and causes[0].culprit_ranks == named:
        return "right"
    if trial.nameless:
        members = causes[0].group.ranks if causes[0].group is not None else ()
        return "ambiguous" if not named and trial.truth in members else "wrong"
    return "ambiguous" if trial.truth in named and {*named} <= {trial.truth, *trial.also} else "wrong"


def cells() -> Iterable[tuple[str, str]]:
    """Every kind of fault with every layout."""
    return ((kind, layout) for kind in KINDS for layout in LAYOUTS)
