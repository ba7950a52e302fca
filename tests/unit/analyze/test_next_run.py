"""Files of a program whose processes began anew: a rank that has not come to the next run has one of the run before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from otel_fr.analyze.brief import brief
from otel_fr.identity import run_id
from otel_fr.ring import RecordState
from tests.support.rings import RankRing, signature

STEP = signature("all_reduce", reduce_op="sum")
NEXT: dict[str, Any] = {"run_id": run_id("job-7", 0, "next"), "session": 1}
PLACE = "/job/train.py:12 load_checkpoint"


@pytest.mark.parametrize(
    ("said", "category"),
    [
        ({"site": PLACE}, "missing_rank"),
        (
            {
                "exception": {"type": "ValueError", "message": "bad checkpoint", "site": PLACE},
                "exit": {"code": 1, "signal": 0, "clean": False, "known": True},
            },
            "rank_dead",
        ),
    ],
    ids=["hangs", "raises"],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_rank_that_did_not_come_to_the_next_run_is_named(
    tmp_path: Path, said: dict[str, Any], category: str, order: tuple[int, ...]
) -> None:
    for rank in order:
        ring = RankRing(tmp_path / "rings", rank, 3, pid=100 + rank, **({} if rank == 2 else NEXT))
        if rank == 2:
            ring.call(STEP, age_s=30)
            ring.write(tmp_path / "files", **said)
        else:
            ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=8)
            ring.write(tmp_path / "files")
    report = load(tmp_path / "files")
    assert report.run is not None
    assert report.run.run_id == NEXT["run_id"]
    assert not any("no file for" in note for note in report.undecided)
    (incident,) = report.incidents
    assert (incident["category"], incident["culprit_ranks"], incident["waiting_ranks"]) == (category, [2], [0, 1])
    assert incident["call_sites"]["2"] == PLACE
    assert brief(report)["ranks"] == [0, 1, 2], "the file of the run before counts"


@pytest.mark.parametrize("is_kept", [True, False], ids=["all files", "replaced files"])
def test_in_the_next_run_its_process_is_known_if_the_others_have_other_ranks(tmp_path: Path, is_kept: bool) -> None:
    """Process 2 is rank 1 now; process 1 still is in the run before."""
    for process, rank in ((0, 0), (2, 1)):
        if is_kept:
            ring = RankRing(tmp_path / "rings" / "before", process, 3, pid=100 + process)
            ring.call(STEP, age_s=30)
            ring.write(tmp_path / "files" / "before")
        ring = RankRing(tmp_path / "rings", rank, 3, pid=100 + process, **NEXT)
        ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=8)
        ring.write(tmp_path / "files")
    ring = RankRing(tmp_path / "rings" / "hangs", 1, 3, pid=101)
    ring.call(STEP, age_s=30)
    ring.write(tmp_path / "files" / "hangs", site=PLACE)
    (incident,) = load(tmp_path / "files").incidents
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [2])
    assert (incident["waiting_ranks"], incident["call_sites"]["2"]) == ([0, 1], PLACE)


@pytest.mark.parametrize("job", ["new", "old"], ids=["another job", "the same job, launched again"])
def test_the_newest_job_is_judged_however_often_an_older_one_was_restarted(tmp_path: Path, job: str) -> None:
    for name, attempt, age in (("old", 3, 600), (job, 0, 60)):
        for rank in range(2):
            facts: dict[str, Any] = {"job_id": name, "attempt": attempt, "run_id": run_id(name, attempt, "nonce")}
            ring = RankRing(tmp_path / "rings" / str(attempt), rank, 3, **facts)
            ring.call(STEP, state=RecordState.IN_FLIGHT if attempt else RecordState.COMPLETED, age_s=age)
            ring.write(tmp_path / "files" / str(attempt), reason="command")
    report = load(tmp_path / "files")
    assert report.run is not None
    runs = [(one.job, one.attempt) for one in (report.run, *report.others)]
    assert runs == [(job, 0), ("old", 3)]
