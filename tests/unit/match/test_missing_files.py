"""Files that are missing, and evidence in any order: silence or the truth."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from otel_fr.match import diagnose
from tests.support.random_jobs.healthy import healthy_run
from tests.support.random_jobs.programs import LAYOUTS
from tests.support.random_jobs.trials import KINDS, Trial, random_trial
from tests.support.random_jobs.views import without

SEEDS = 10


def trials(*kinds: str, seeds: int = SEEDS) -> Iterator[Trial]:
    for layout in LAYOUTS:
        for kind in kinds:
            found = (random_trial(seed, kind, layout) for seed in range(seeds))
            yield from (trial for trial in found if trial is not None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_job_raises_nothing_whatever_is_missing(layout: str) -> None:
    runs = [healthy_run(seed, layout, is_whole=False) for seed in range(SEEDS)]
    assert [(run.seed, run.findings) for run in runs if run.findings] == []


@pytest.mark.parametrize("kind", ["stuck on the host", "killed"])
def test_no_rank_with_a_file_is_accused_wrongly_whatever_is_missing(kind: str) -> None:
    for trial in trials(kind):
        rng = random.Random(trial.seed)
        others = [rank for rank in trial.job.calls if rank != trial.truth]
        absent = frozenset(rng.sample(others, rng.randint(1, len(others))))
        found = diagnose(without(trial.evidence, absent))
        assert {rank for one in found for rank in one.culprit_ranks} <= {trial.truth, *absent}, trial.seed


def test_evidence_in_another_order_gives_the_same_verdict() -> None:
    for trial in trials(*KINDS, seeds=1):
        evidence = trial.evidence
        before, rng = diagnose(evidence), random.Random(trial.seed)
        evidence.calls = rng.sample(evidence.calls, len(evidence.calls))
        evidence.ranks = dict(rng.sample(list(evidence.ranks.items()), len(evidence.ranks)))
        evidence.groups = dict(rng.sample(list(evidence.groups.items()), len(evidence.groups)))
        assert diagnose(evidence) == before
