"""A launcher ends the ranks of a job one after the other: what was told before is not told in another way."""

from __future__ import annotations

import pytest

from otel_fr.match import Group
from tests.support.evidence import SUM, world
from tests.support.scripted_job import Scripted, ScriptedJob

TP = {r: Group(f"t{r // 2}", f"{1 + r // 2}", "tp", (r // 2 * 2, r // 2 * 2 + 1)) for r in range(4)}
DP = {r: Group(f"d{r % 2}", f"{3 + r % 2}", "dp", (r % 2, r % 2 + 2)) for r in range(4)}


def calls() -> list[Scripted]:
    """In the third step rank 3 calls its all_reduce of tp in dp: all wait for each other in a cycle."""
    made = [
        Scripted(rank, groups[rank], SUM, step, 0.4 * step + late, 0.4 * step + late + 0.1)
        for rank in range(4)
        for step in (1, 2)
        for groups, late in ((TP, 0.0), (DP, 0.2))
    ]
    made += [Scripted(0, TP[0], SUM, 3, 1.2, 1.3), Scripted(0, DP[0], SUM, 3, 1.4), Scripted(2, TP[2], SUM, 3, 1.2)]
    made += [Scripted(1, TP[1], SUM, 3, 1.2, 1.3), Scripted(1, DP[1], SUM, 3, 1.4, 1.5)]
    made += [Scripted(1, TP[1], SUM, 4, 1.6), Scripted(3, DP[3], SUM, 3, 1.2, 1.5), Scripted(3, DP[3], SUM, 4, 1.6)]
    return made


@pytest.mark.parametrize("first", range(4))
def test_the_cause_that_was_told_stays_the_cause(first: int) -> None:
    job = ScriptedJob(world(4), calls(), stopped={rank: 8.0 + 0.5 * ((rank - first) % 4) for rank in range(4)})
    job.play(14.0)
    told = {(category, culprits) for moment in job.history for _, category, culprits in moment.causes}
    assert told == {("missing_rank", (3,))}
