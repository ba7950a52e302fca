"""The first call that a rank made elsewhere in the program than its peers, long before others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_fr.analyze import FAULT, HEALTHY, Analysis, load
from otel_fr.ring import RecordState
from tests.support.rings import RankRing, signature

STEP = signature("all_reduce", reduce_op="sum")
LINES = {"grads": 10, "loss": 20, "evaluate": 30}
LOOP = ["grads", "loss"] * 8
"""The lines of the calls of a rank, in its order."""
SKIPS = LOOP[:5] + LOOP[6:]
"""Its sixth call is left out: from there on, it makes the calls of the others one number earlier."""
DOUBLES = [*LOOP[:5], "grads", *LOOP[5:]]


def of_ranks(folder: Path, *programs: Sequence[str], waiting: bool = False) -> Analysis:
    """Ranks that make these calls. ``waiting``: those that make most wait in the last one."""
    most = max(map(len, programs))
    for rank, lines in enumerate(programs):
        ring = RankRing(folder / "rings", rank, len(programs))
        for number, line in enumerate(lines, 1):
            state = RecordState.IN_FLIGHT if waiting and number == most else RecordState.COMPLETED
            ring.call(STEP, state=state, age_s=30, site=(("/job/train.py", LINES[line], line),))
        ring.write(folder / "files", "pickle")
    return load(folder / "files")


def said(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if "made elsewhere" in text]


def test_the_lines_of_the_first_call_in_which_a_missing_rank_differed_are_named(tmp_path: Path) -> None:
    report = of_ranks(tmp_path, LOOP, SKIPS, LOOP, waiting=True)
    (found,) = report.findings
    assert (report.status, found.culprit_ranks, found.sequence_id) == (FAULT, (1,), len(LOOP))
    (text,) = said(found.details)
    assert all(part in text for part in ("rank 1", "number 6 ", "train.py:10 grads", "train.py:20 loss"))


@pytest.mark.parametrize("program", [[*SKIPS, "evaluate"], DOUBLES[:-1]], ids=["left out", "too many"])
def test_ranks_whose_counts_fit_in_the_end_are_told_beside_no_fault(tmp_path: Path, program: list[str]) -> None:
    report = of_ranks(tmp_path, LOOP, LOOP, program)
    assert (report.status, report.findings) == (HEALTHY, [])
    (text,) = said(report.undecided)
    assert all(part in text for part in ("rank 2", "number 6 "))


@pytest.mark.parametrize(
    "programs",
    [
        (LOOP, LOOP, LOOP),
        (LOOP, [*LOOP[:5], "evaluate", *LOOP[6:]], LOOP),  # a line of its own for one call
        (LOOP, LOOP[1:] + LOOP[:1], LOOP),  # it always makes them in another order
        (LOOP, [*LOOP[:-1], "evaluate"], LOOP),
        (LOOP, SKIPS),  # of two, none shows which went astray
    ],
    ids=["alike", "one call", "always", "the last", "of two"],
)
def test_lines_of_its_own_are_no_news(tmp_path: Path, programs: Sequence[list[str]]) -> None:
    report = of_ranks(tmp_path, *programs)
    assert said(report.undecided) == []
    assert not any(said(found.details) for found in report.findings)
