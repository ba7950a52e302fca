"""A monitor's analysis, which runs in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_fr.monitor.control import verdict
from tests.support.waiting import PATIENCE, wait_for


def test_a_result_larger_than_a_pipe_arrives_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """import json; print(json.dumps({"ranks": list(range(50_000))}))"""
    monkeypatch.setattr(verdict, "python_command", lambda _: [sys.executable, "-c", program])
    analysis = verdict.Analysis([str(tmp_path)], PATIENCE)
    assert wait_for(analysis.is_over)
    assert analysis.result()["ranks"][-1] == 49_999


def test_an_analysis_that_does_not_end_is_ended_and_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "python_command", lambda _: [sys.executable, "-c", "while True: pass"])
    analysis = verdict.Analysis([str(tmp_path)], 0.2)
    assert wait_for(analysis.is_over)
    assert analysis.result() == {}
