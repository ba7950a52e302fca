"""Files with calls that cannot be read, or with nothing that says which calls completed: never "no fault found"."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import UNDECIDED, UNUSABLE, load
from otel_fr.analyze.output.overview import short_verdict
from otel_fr.analyze.output.text import to_json, to_text
from tests.support.torch_files import entry, write

UNHASHABLE = {"state": {"a": 1}, "profiling_name": ["x"]}


def damaged(record: int) -> dict[str, Any]:
    return {**entry(record, "all_reduce", record + 1), **UNHASHABLE}


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_of_which_no_call_can_be_read_is_not_readable(tmp_path: Path, count: int) -> None:
    report = load(write(tmp_path, {rank: [damaged(n) for n in range(count)] for rank in range(2)}))
    assert report.status == UNUSABLE
    assert len(report.problems) == 2
    assert all("required fields are missing in" in problem.text for problem in report.problems)


def test_a_call_that_cannot_be_read_leaves_the_verdict_open(tmp_path: Path) -> None:
    calls = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2)]
    healthy = load(write(tmp_path, {0: calls, 1: [*calls, damaged(2)]}))
    assert healthy.status == UNDECIDED
    assert healthy.open_calls is None
    text = to_text(healthy)
    assert "undecided: 1 call of rank 1 could not be read; no fault found in the 4 calls that could be read." in text
    assert "entries of rank 1 lack required fields" in text
    assert json.loads(to_json(healthy))["verdict"] == "undecided"
    assert short_verdict(healthy) == "undecided: 1 call of rank 1 could not be read"


def test_open_calls_and_calls_that_cannot_be_read_are_both_told(tmp_path: Path) -> None:
    calls = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2, state="scheduled")]
    report = load(write(tmp_path, {0: calls, 1: [*calls, damaged(2)]}))
    text = to_text(report)
    assert report.status == UNDECIDED
    assert "2 calls open on ranks 0, 1" in text
    assert "entries of rank 1 lack required fields" in text


def test_calls_in_flight_in_files_of_the_first_versions_are_open(tmp_path: Path) -> None:
    """They have neither a version nor process groups; their only recorder, NCCL's, shows which calls ended."""
    for rank in range(2):
        calls = [entry(0, "all_reduce", 1, state="scheduled")]
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps({"entries": calls}, 2))
    report = load(tmp_path)
    assert report.status == UNDECIDED
    assert "2 calls open on ranks 0, 1" in to_text(report)
