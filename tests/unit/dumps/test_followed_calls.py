"""Calls that are followed on their device: the ring has when PyTorch saw them begin and end, which is no duration."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.capture.completion import EndMode, end_mode
from otel_fr.dumps.read import load
from otel_fr.ring import RecordState
from tests.support.rings import RankRing, signature


@pytest.mark.parametrize("backend", ["nccl2", "nccl2-lazy"])
def test_they_end_when_pytorch_sees_it(backend: str) -> None:
    assert end_mode(backend, returns_work=True) is EndMode.DEVICE
    assert end_mode("nccl", returns_work=True) is EndMode.UNKNOWN


@pytest.mark.parametrize(("backend", "is_timed"), [("nccl2", False), ("gloo", True)])
def test_a_file_shows_their_end_and_no_duration(backend: str, is_timed: bool, tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "rings", 0, 2)
    ring.call(signature("all_reduce", backend=backend), state=RecordState.COMPLETED, age_s=50.0)
    (entry,) = load(ring.write(tmp_path / "files")).entries
    assert entry.state.value == "completed"
    assert (entry.duration is not None) is is_timed
