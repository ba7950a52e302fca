"""Random jobs over common layouts of process groups: what `make bench-verdicts` measures, on fewer jobs."""

from __future__ import annotations

import itertools

import pytest

from tests.support.random_jobs.explanations import explains
from tests.support.random_jobs.healthy import healthy_run
from tests.support.random_jobs.programs import LAYOUTS
from tests.support.random_jobs.recovery import FIRST, MISSING, NEW, RUN, recovery
from tests.support.random_jobs.scoring import judge
from tests.support.random_jobs.several_faults import is_right, several_faults
from tests.support.random_jobs.trials import cells, random_trial

SEEDS = 10
LEAST_RIGHT = 0.99
"""On so few jobs; benchmarks/RESULTS.md has the figures of many."""
LEAST_RIGHT_OF_SEVERAL = 0.97
LEAST_RIGHT_IN_RECOVERY = 0.99
RIGHT = ("right", "ambiguous", "unseen")
SURE = (
    "missing step",
    "extra call",
    "stuck on the host",
    "Python blocked",
    "killed",
    "killed in a wait for a late rank",
    "SIGABRT before the stall time",
    "straggler",
    "wrong size",
    "wrong dtype",
    "wrong root",
    "wrong reduce op",
    "aborted at the timeout",
)
NOT_SURE = ("wrong peer", "fewer micro-batches", "stuck on the device")
"""docs/concepts/verdicts.md says why."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_healthy_jobs_raise_nothing_at_any_moment(layout: str) -> None:
    runs = [healthy_run(seed, layout) for seed in range(SEEDS)]
    assert [(run.seed, run.findings) for run in runs if run.findings] == []
    assert sum(run.collectives for run in runs) > 50 * SEEDS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exception_in_a_thread_of_a_healthy_job_raises_nothing(layout: str) -> None:
    found = [random_trial(seed, "exception in a thread", layout) for seed in range(SEEDS)]
    assert [score for trial in found if trial is not None and (score := judge(trial)[0]).categories] == []


@pytest.mark.parametrize("kind", SURE)
def test_the_faulty_rank_is_named(kind: str) -> None:
    found = [random_trial(seed, kind, layout) for layout in LAYOUTS for seed in range(SEEDS)]
    scores = [judge(trial)[0] for trial in found if trial is not None]
    assert [score for score in scores if score.outcome not in RIGHT] == []


def test_a_rank_with_fewer_micro_batches_is_named_maybe_with_a_neighbour_but_no_neighbour_alone() -> None:
    """Whoever waits for it, or whom it waits for, did not leave out anything."""
    found = [random_trial(seed, "fewer micro-batches", "tp_dp_pp") for seed in range(100)]
    shown = [judge(trial)[0] for trial in found if trial is not None and trial.view.ends_shown]
    assert [score for score in shown if score.named and score.truth not in score.named] == []
    assert sum(score.named == (score.truth,) for score in shown) > 0.4 * len(shown)


def test_verdicts_on_all_faults_hold_the_limit_and_none_is_silent() -> None:
    found = [random_trial(*cell) for number in range(2) for cell in cells(number) if cell[1] not in NOT_SURE]
    scores = [judge(trial)[0] for trial in found if trial is not None]
    assert [score for score in scores if score.outcome == "silent"] == []
    assert sum(score.outcome in RIGHT for score in scores) >= LEAST_RIGHT * len(scores)


@pytest.mark.parametrize(("count", "least"), [(2, 40), (3, 6)])
def test_several_faults_are_named_each_once_and_nobody_else(count: int, least: int) -> None:
    found = [several_faults(seed, layout, count) for layout in LAYOUTS for seed in range(60)]
    trials = [trial for trial in found if trial is not None]
    assert sum(len(trial.must_name) == count for trial in trials) > least
    right = [is_right(trial)[0] for trial in trials]
    assert sum(right) >= LEAST_RIGHT_OF_SEVERAL * len(right)
    for trial in trials:
        named = {rank for finding in is_right(trial)[1] for rank in finding.culprit_ranks}
        assert named <= trial.may_name


def test_faults_that_strike_before_the_first_call_are_named() -> None:
    found = [several_faults(seed, layout, 2, at_begin=True) for layout in LAYOUTS for seed in range(30)]
    trials = [trial for trial in found if trial is not None]
    assert len(trials) > 40
    assert [trial.faults for trial in trials if not is_right(trial)[0]] == []


def test_a_fault_during_recovery_from_another_is_named_beside_it() -> None:
    found = [recovery(seed, layout) for layout in LAYOUTS for seed in range(40)]
    trials = [trial for trial in found if trial is not None]
    assert {(trial.first, trial.how) for trial in trials} >= set(itertools.product(FIRST, (NEW, RUN)))
    wrong = [(trial.first, trial.second, text) for trial in trials if (text := trial.wrong())]
    assert len(wrong) <= (1 - LEAST_RIGHT_IN_RECOVERY) * len(trials), wrong


@pytest.mark.parametrize(("layout", "seed"), [("tp_dp", 242), ("tp_dp_pp", 193), ("hsdp", 291)])
def test_a_call_left_out_in_recovery_is_not_lost_among_the_places_where_ranks_gave_up(layout: str, seed: int) -> None:
    trial = recovery(seed, layout)
    assert trial is not None
    assert (trial.second, trial.wrong()) == (MISSING, "")


def test_a_rank_out_of_step_is_among_the_explanations_of_its_job() -> None:
    for kind, layout in itertools.product(("missing call", "extra call"), LAYOUTS):
        for seed in range(2):
            trial = random_trial(seed, kind, layout)
            assert trial is not None
            assert explains(trial.job, trial.ends, trial.fault.rank)


def test_the_same_seed_gives_the_same_job() -> None:
    first, second = (random_trial(7, "extra call", "tp_dp_pp") for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.evidence == second.evidence


@pytest.mark.parametrize(("kind", "layout", "seed"), [("missing step", "hsdp", 16), ("missing call", "tp_dp_pp", 27)])
def test_a_cycle_through_an_instance_that_all_joined_has_a_verdict(kind: str, layout: str, seed: int) -> None:
    trial = random_trial(seed, kind, layout)
    assert trial is not None
    assert trial.truth in judge(trial)[0].named
