"""Random jobs judged from files and live: the same verdicts as on the evidence that the model makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.long_tests import all_but
from tests.support.random_jobs.paths import compare_paths, judge_live
from tests.support.random_jobs.trials import KINDS, layouts_of, random_trial

SEEDS = 10
"""Not every program has a call in which the fault can be put."""


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_files_and_the_collector_lead_to_the_same_verdict(number: int) -> None:
    """On one layout for each kind of fault; `make bench-verdicts` tries more."""
    layouts = layouts_of(KINDS[number])
    tried = (random_trial(seed, KINDS[number], layouts[number % len(layouts)]) for seed in range(SEEDS))
    trial = next(trial for trial in tried if trial is not None)
    found = compare_paths(trial)
    assert not found.differs
    assert found.strays == ()


WITNESSED = ("missing call", "wrong root", "wrong tag", "stuck on the host", "killed in a wait for a late rank")
"""One kind of each sort: out of step, unequal calls, messages, a rank that stands, one that is dead."""


@pytest.mark.parametrize("kind", all_but(WITNESSED, KINDS))
def test_a_few_witnesses_of_each_group_lead_to_the_same_verdict(kind: str) -> None:
    """As in a large job; some seconds later, because others are asked where they wait."""
    layouts = layouts_of(kind)
    layout = layouts[(KINDS.index(kind) + 1) % len(layouts)]
    tried = (random_trial(seed, kind, layout) for seed in range(SEEDS))
    trial = next(trial for trial in tried if trial is not None)
    trial = replace(trial, now=trial.now + 8.0)
    (in_full, named), (in_crowd, also_named) = judge_live(trial), judge_live(trial, in_crowd=True)
    assert in_crowd.outcome == in_full.outcome
    assert also_named <= named | {trial.truth}


@pytest.mark.parametrize(
    ("kind", "layout", "seed"),
    [
        ("killed in a wait for a late rank", "hsdp", 2),
        ("killed in a wait for a late rank", "tp_dp_pp", 3),
        ("SIGABRT before the stall time", "tp_dp_pp", 0),
        ("stuck on the host", "world", 3),
        ("Python blocked", "overlap", 1),
        ("missing call", "tp_dp_pp", 43),
        ("extra call", "pairs", 97),
        ("wrong peer", "tp_dp_pp", 44),
        ("left early", "tp_dp_pp", 0),
    ],
)
def test_paths_that_led_to_another_verdict(kind: str, layout: str, seed: int) -> None:
    trial = random_trial(seed, kind, layout)
    assert trial is not None
    found = compare_paths(trial)
    assert (found.files.outcome, found.live.outcome) == ("right", "right")
