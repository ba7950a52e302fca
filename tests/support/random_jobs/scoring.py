"""Verdicts compared with the truth.

A verdict is *right* if its causes name the faulty rank and no other, with a category that the fault can have.

It is *ambiguous*, which is accepted, if it names the faulty rank, and otherwise only ranks of a second explanation with
a single fault. These are the second explanations:

* A call has a wrong argument, and only two ranks' records are left of it, or it has only two ranks (a group of two, or
  a message). The other rank may be wrong instead.
* Calls are missing, too many, in another order or to another rank, or a rank ended early without an error. One change
  of another rank's calls makes all calls fit just as well (`explanations.explains`). In a group of two, one rank's
  missing call is the other's extra call.
* The job comes to the same state if another rank's device is stuck, or if the network does not execute a collective
  (`explanations.other_devices`). Then the verdict need not name a rank, but it must be about a collective of the faulty
  rank's.

Two verdicts without a finding are ambiguous, too:

* The evidence is from files, all other ranks ended cleanly, and the undecided verdict names the faulty rank first. The
  faulty rank's file may be older than the others'.
* Calls in flight have no ages. All members have joined each rank's oldest call in flight, or only such ranks are absent
  from it. The calls may have been running, so the verdict may leave the question open.

Other verdicts without a finding are *silent* if the evidence shows the fault. If it does not (the rings have not kept a
reduction with the wrong operator), they are *unseen* and not counted. All other verdicts are *wrong*.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr.match import CallState, Case, Category, Ending, Finding, diagnose, open_questions, suspects
from tests.support.random_jobs.explanations import explains, other_devices
from tests.support.random_jobs.faults import FEWER_BATCHES, Fault
from tests.support.random_jobs.simulation import SimulatedCall, Simulation
from tests.support.random_jobs.trials import Trial
from tests.support.random_jobs.views import View, by_place

_OPEN = (CallState.IN_FLIGHT, CallState.UNKNOWN, CallState.FAILED)


@dataclass(slots=True, kw_only=True)
class Score:
    """The score of a verdict.

    Attributes:
        outcome: "right", "ambiguous", "wrong", "silent" or "unseen".
        truth: the faulty rank; None: nobody is at fault.
        named: the culprits of the causes. accused_wrongly: culprits that belong to no explanation that fits.
        can_be_named: a verdict that names no rank misses the faulty rank.
    """

    seed: int
    layout: str
    kind: str
    outcome: str
    truth: int | None
    named: tuple[int, ...]
    accused_wrongly: tuple[int, ...]
    can_be_named: bool
    categories: tuple[Category, ...]
    summary: str


def judge(trial: Trial) -> tuple[Score, list[Finding]]:
    """Return the score of the match engine's verdict, and the findings."""
    findings = diagnose(trial.evidence)
    is_open = not findings and bool(open_questions(trial.evidence))
    return score(trial, findings, is_open), findings


def score(trial: Trial, findings: list[Finding], is_open: bool) -> Score:
    """Return the findings' score. ``is_open``: there are none, and the verdict says that calls in flight are open."""
    causes = [finding for finding in findings if finding.caused_by is None]
    named = tuple(sorted({rank for finding in causes for rank in finding.culprit_ranks}))
    others = _other_explanations(trial, {*named} - {trial.truth})
    is_nameless = not named and trial.fault.rank in trial.fault.stops.device and _is_nameless(trial)
    return Score(
        seed=trial.seed,
        layout=trial.layout,
        kind=trial.kind,
        outcome=_outcome(trial, causes, named, others, is_nameless, is_open),
        truth=trial.truth,
        named=named,
        accused_wrongly=tuple(rank for rank in named if rank != trial.truth and rank not in others),
        can_be_named=trial.must_name and not is_nameless,
        categories=tuple(finding.category for finding in causes),
        summary=causes[0].summary if causes else "",
    )


def _outcome(
    trial: Trial, causes: list[Finding], named: tuple[int, ...], others: set[int], is_nameless: bool, is_open: bool
) -> str:
    if any(finding.culprit_ranks for finding in causes if finding.caused_by is not None):
        return "wrong"
    if not causes:
        if not trial.must_name:
            return "right"
        if not trial.visible:
            return "unseen"
        return "ambiguous" if (is_open and _may_be_running(trial)) or _may_be_outdated(trial) else "silent"
    if trial.truth is None:
        return "wrong"
    if trial.truth in named and not any(_can_be_called(trial, finding) for finding in causes):
        return "wrong"
    if named == (trial.truth,) and causes[0].culprit_ranks == named:
        return "right"
    if not named:
        about = causes[0].group.ranks if causes[0].group is not None else ()
        return "ambiguous" if is_nameless and trial.truth in about else "wrong"
    return "ambiguous" if trial.truth in named and {*named} <= {trial.truth, *others} else "wrong"


def _can_be_called(trial: Trial, finding: Finding) -> bool:
    """Return True if the finding names the faulty rank, and its category fits the fault."""
    fault, category = trial.fault, finding.category
    if trial.truth not in finding.culprit_ranks:
        return False
    if fault.category is not None:
        return category is fault.category
    if fault.ending in ("killed", "raised"):
        return category is Category.RANK_DEAD
    if fault.blocks_python:
        return category is Category.RANK_STUCK
    if fault.rank in fault.stops.device:
        return category is Category.RANK_STUCK or (_may_be_elsewhere(trial) and category in _ELSEWHERE)
    return category not in (Category.RANK_DEAD, Category.RANK_STUCK, Category.STALLED_COLLECTIVE)


_ELSEWHERE = (Category.MISSING_RANK, Category.UNMATCHED_P2P)


def _may_be_elsewhere(trial: Trial) -> bool:
    """Return True if nothing shows that the rank waits for its stuck device: it may be anywhere in its program.

    That is so if the backend does not show when calls end. It is also so if the device is stuck in a message that its
    peer completed, because a backend may show a message's end only to a thread that waits for it.
    """
    record, takes_part = trial.fault.stops.device[trial.fault.rank]
    calls = trial.job.calls[trial.fault.rank]
    in_message = record < len(calls) and calls[record].op.is_message and takes_part
    return in_message or not trial.view.ends_shown


# Second explanations.


def _other_explanations(trial: Trial, ranks: set[int]) -> set[int]:
    """Return the innocent ``ranks`` that the evidence allows to be at fault. Pass only ranks that were named."""
    fault = trial.fault
    if not ranks or (fault.op is None and fault.ending != "clean"):
        return set()
    if fault.category is None:
        recorded = _recorded(trial.job, fault, trial.view)
        steps = fault.kind in ("missing step", FEWER_BATCHES)
        return {
            rank
            for rank in ranks
            if recorded == {rank, fault.rank} or explains(trial.job, trial.ends, rank, steps=steps)
        }
    return ranks & _may_be_wrong_too(trial)


def _may_be_wrong_too(trial: Trial) -> set[int]:
    """Return the ranks of a call with a wrong argument if it has only two, or if only two ranks' records are left."""
    fault = trial.fault
    op = fault.op
    assert op is not None
    recorded = _recorded(trial.job, fault, trial.view)
    if len(recorded) == 2:
        return set(recorded)
    if op.is_message:
        return {op.peer} if op.peer is not None else set()
    return set(op.group.ranks) if len(op.group.ranks) == 2 else set()


def _recorded(job: Simulation, fault: Fault, view: View) -> set[int]:
    """Return the ranks with a record of the first instance in which the calls differ and the faulty rank takes part."""
    kept = view.ring if view.form == "files" else 1 << 30
    known = {rank: calls[max(0, len(calls) - kept) :] for rank, calls in job.calls.items()}
    for calls in sorted(by_place(known).values(), key=lambda calls: min(c.enqueued for c in calls)):
        ranks = {call.rank for call in calls}
        if fault.rank in ranks and len({call.op.token for call in calls}) > 1:
            return ranks
    return set()


def _is_nameless(trial: Trial) -> bool:
    """Return True if another device, or the network, explains the evidence of a stuck device."""
    return other_devices(trial.job, trial.fault, trial.behaviour, ends_shown=trial.view.ends_shown)


def _may_be_outdated(trial: Trial) -> bool:
    """Return True if all other ranks ended cleanly, and the undecided verdict names the faulty rank first.

    The faulty rank's file may then be older than these ranks' ends.
    """
    others = [rank for rank in trial.job.calls if rank != trial.truth]
    ended = all(rank in trial.ends.infos and trial.ends.infos[rank].ending is Ending.CLEAN for rank in others)
    if trial.view.form != "files" or not ended or trial.truth in trial.ends.at:
        return False
    return [suspect.ranks for suspect in suspects(Case(trial.evidence))[:1]] == [(trial.truth,)]


def _may_be_running(trial: Trial) -> bool:
    """Return True if calls in flight have no ages, and all of them may be running.

    A call may be running if all members have joined it, or if only ranks whose calls may be running are absent.
    """
    if any(info.ending in (Ending.RAISED, Ending.KILLED) for info in trial.evidence.ranks.values()):
        return False
    oldest: dict[int, SimulatedCall] = {}
    for call in sorted(trial.evidence.calls, key=lambda call: call.record, reverse=True):
        if call.state is CallState.FAILED or (call.state in _OPEN and call.age is not None):
            return False
        if call.state in _OPEN:
            oldest[call.rank] = trial.job.calls[call.rank][call.record]
    joined = {place: {call.rank for call in calls} for place, calls in by_place(trial.job.calls).items()}
    running: set[int] = set()
    while True:
        more = {rank for rank, first in oldest.items() if {*first.members} - joined[first.place] <= running} - running
        if not more:
            return running == oldest.keys()
        running |= more
