"""What ``otel-fr demo`` refuses to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_fr.cli import main


@pytest.mark.parametrize("name", ["flight-recorder", "job-files"])
def test_files_of_a_job_are_not_deleted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "torchrun")
    monkeypatch.setattr("otel_fr.demo._free_ports", None)  # nothing may be started
    kept = tmp_path / name / "4711" / "otel_fr_rank_0"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert main(["demo", "--dir", str(tmp_path)]) == 2
    assert "is not from a demo" in capsys.readouterr().err
    assert kept.exists()
