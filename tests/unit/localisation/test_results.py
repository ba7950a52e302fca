"""Results that are kept while a run lasts, and the sentences on answers that are not best."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.localisation import why
from benchmarks.localisation.answers import Outcome
from benchmarks.localisation.catalogue import catalogue
from benchmarks.localisation.field import TOOLS, Row, runs
from benchmarks.localisation.held_out import KINDS
from benchmarks.localisation.results import Results
from benchmarks.localisation.running import Setting
from benchmarks.localisation.tools.otel_fr import Live, OwnFiles, TorchFiles
from benchmarks.localisation.tools.wrapper import Wrapper


def row(tool: str, outcome: Outcome, *, program: str = "missing", setting: str = "gloo", **more: object) -> Row:
    known: Row = {"backend": setting, "program": program, "kind": "made", "culprits": [[1]], "world": 3, "tool": tool}
    return {**known, "outcome": outcome, "ranks": [], "strayed": [], "seconds": None, "text": "", **more}


def begun(*rows: Row) -> Results:
    results = Results()
    results.begin({"seed": 0})
    results.add(rows)
    return results


def test_what_was_answered_is_not_asked_again_and_the_report_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    begun(row(Live.name, "right"), row(OwnFiles.name, "right")).write(path)
    results = Results.read(path)
    (missing,), (size,) = catalogue(["missing"]), catalogue(["size"])
    assert results.have(missing, Setting("gloo", None), [Live(), OwnFiles()])
    assert not results.have(missing, Setting("nccl", None), [Live(), OwnFiles()])
    assert not results.have(size, Setting("gloo", None), [Live()])
    assert not results.have(missing, Setting("gloo", None), [Live(), TorchFiles()])
    assert "resumed" not in results.report()
    results.begin({"seed": 0})
    results.add([row(TorchFiles.name, "right")])
    assert [part["answers"] for part in results.parts] == [2, 1]
    assert "resumed" in results.report()


def test_of_two_answers_of_one_tool_on_one_job_the_last_counts() -> None:
    joined = Results.joined([begun(row(Live.name, "silent")), begun(row(Live.name, "right"))])
    assert [one["outcome"] for one in joined.rows] == ["right"]
    assert len(joined.parts) == 2


def test_jobs_that_did_not_begin_are_told_and_asked_again() -> None:
    results = begun()
    results.add("gloo missing: 2 of 3 ranks came")
    assert "2 of 3 ranks came" in results.report()
    results.begin({"seed": 0})
    assert "2 of 3 ranks came" not in results.report()


def test_a_tool_that_changes_the_job_has_a_run_of_its_own_in_its_settings() -> None:
    own = [[tool.name for tool in together] for together in runs(TOOLS, "nccl")]
    assert [Wrapper.name] in own
    assert sum(map(len, own)) == len(TOOLS)
    assert [Wrapper.name] not in [[tool.name for tool in together] for together in runs(TOOLS, "nccl-timed")]


@pytest.mark.parametrize(
    ("ours", "other", "is_told"),
    [
        ({"outcome": "silent"}, {"outcome": "right"}, True),
        ({"outcome": "undecided"}, {"outcome": "wrong"}, True),
        ({"outcome": "right", "seconds": 4.4}, {"outcome": "right", "seconds": 0.2}, True),
        ({"outcome": "right", "seconds": 0.9}, {"outcome": "right", "seconds": 0.2}, False),
        ({"outcome": "right", "seconds": 4.4}, {"outcome": "wrong", "seconds": 0.2}, False),
        ({"outcome": "quiet"}, {"outcome": "quiet"}, False),
        ({"outcome": "false alarm"}, {"outcome": "quiet"}, True),
    ],
)
def test_an_answer_that_is_not_best_has_a_sentence(ours: Row, other: Row, is_told: bool) -> None:
    rows = [{**row(Live.name, "right"), **ours}, {**row(Wrapper.name, "right"), **other}]
    assert bool(why.table(rows)) == is_told


def test_a_reason_explains_only_its_own_answers() -> None:
    lost = row(OwnFiles.name, "undecided", program="lost_host")
    assert why.why(lost) != why.UNKNOWN
    assert why.why({**lost, "program": "missing"}) == why.UNKNOWN
    no_file = row(TorchFiles.name, "silent", text="no file")
    assert why.why(no_file) != why.why({**no_file, "backend": "nccl2"})


def test_reasons_name_programs_and_tools_that_there_are() -> None:
    known = {one.name for one in catalogue()} | {*KINDS}
    for reason in why.REASONS:
        assert known.issuperset(reason.programs), reason
        assert {*why.OURS}.issuperset(reason.tools), reason
