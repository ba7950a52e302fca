"""The command on files whose calls are in flight: undecided, or no fault if they are known to be new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_fr.ring import RecordState
from tests.support.commands import otel_fr
from tests.support.rings import RankRing, signature
from tests.support.torch_files import entry, write

STEP = signature("all_reduce")


def stalled(folder: Path) -> Path:
    calls = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2, state="scheduled")]
    return write(folder, dict.fromkeys(range(2), calls))


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_undecided_has_an_exit_status_of_its_own(tmp_path: Path, form: str) -> None:
    done = otel_fr("analyze", stalled(tmp_path), "--format", form)
    assert (done.returncode, done.stderr) == (3, "")
    assert "undecided: 2 calls open on ranks 0, 1" in done.stdout
    assert "No fault found" not in done.stdout


def test_the_tables_are_written_too_and_their_failure_counts_more(tmp_path: Path) -> None:
    folder = stalled(tmp_path / "files")
    assert otel_fr("analyze", folder, "-o", tmp_path / "db.json").returncode == 3
    assert json.loads((tmp_path / "db.json").read_text())["collectives"]
    (tmp_path / "db.sqlite").mkdir()
    assert otel_fr("analyze", folder, "-o", tmp_path / "db.sqlite").returncode == 2
    assert "3 undecided" in otel_fr("analyze", "--help").stdout


@pytest.mark.parametrize(("age", "status"), [(0.01, 0), (60.0, 1)], ids=["for 10 ms", "for a minute"])
def test_calls_of_a_known_age_are_decided(tmp_path: Path, age: float, status: int) -> None:
    for rank in range(2):
        ring = RankRing(tmp_path / "rings", rank, 2)
        ring.call(STEP)
        ring.call(STEP, age_s=age, state=RecordState.IN_FLIGHT)
        ring.write(tmp_path / "files")
    done = otel_fr("analyze", tmp_path / "files", "--format", "json")
    assert done.returncode == status, done.stdout
    assert json.loads(done.stdout)["verdict"] == ("fault" if status else "no_fault")
