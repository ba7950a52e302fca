"""Healthy random jobs, judged at many moments: no judgement may have a finding."""

from __future__ import annotations

import random
from dataclasses import dataclass

from otel_fr.match import Evidence, Finding, diagnose
from tests.support.random_jobs.endings import natural_ends
from tests.support.random_jobs.programs import random_program
from tests.support.random_jobs.simulation import Simulation
from tests.support.random_jobs.trials import MAX_LAG, random_behaviour, random_lags, random_view
from tests.support.random_jobs.views import evidence, without

MOMENTS = 10
"""How often one job is judged while it runs."""


@dataclass(slots=True, kw_only=True)
class HealthyRun:
    """``collectives``: how many the job completed (messages not counted). ``findings``: from all judgements."""

    seed: int
    layout: str
    collectives: int
    judgements: int
    findings: list[Finding]


def healthy_run(seed: int, layout: str, *, is_whole: bool = True) -> HealthyRun:
    """Make a healthy job from the seed. Judge it at random moments and after its end, in every form of evidence.

    The ranks' records are from different moments, up to `MAX_LAG` apart. After the end calls may lack ages, as in
    PyTorch's files. Before the end they have ages, because files without ages are judged as if the job had stopped.

    Args:
        is_whole: if False, some ranks have no file in each judgement.
    """
    rng = random.Random(f"healthy {layout} {seed}")
    program = random_program(rng, layout, rng.randint(3, 30))
    behaviour = random_behaviour(rng)
    job = Simulation(program, behaviour, rng)
    job.run()
    ends = natural_ends(job)
    assert len(ends.at) == program.world, "a healthy job comes to its end"
    absent = random.Random(seed)
    findings: list[Finding] = []

    def judge(found: Evidence) -> None:
        gone = [] if is_whole else absent.sample(list(found.ranks), absent.randint(1, len(found.ranks)))
        findings.extend(diagnose(without(found, frozenset(gone))))

    for _ in range(MOMENTS):
        view = random_view(rng, behaviour)
        view.ages = True
        lags = random_lags(rng, program)
        moment = rng.uniform(0.0, job.clock + MAX_LAG)
        judge(evidence(job, view, moment, ends, lags))
    for _ in range(2):
        judge(evidence(job, random_view(rng, behaviour), job.clock + rng.uniform(0.0, 60.0), ends))
    places = {call.place for calls in job.calls.values() for call in calls if not call.op.is_message}
    return HealthyRun(seed=seed, layout=layout, collectives=len(places), judgements=MOMENTS + 2, findings=findings)
