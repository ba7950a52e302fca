"""The files of PyTorch's watchdog beside those of otel-fr: both are read, and name the same rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.hardware import Hardware
from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.verdicts import cause_incidents

pytestmark = torchrun.needed

TIMEOUT = 20.0
"""Seconds of PyTorch's timeout: longer than otel-fr takes to have its evidence."""


def test_files_of_the_watchdog_and_ours_name_the_same_rank(
    hardware: Hardware, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if hardware.device == "cpu":
        pytest.skip("gloo has no watchdog that writes files")
    (tmp_path / "torch").mkdir()
    prefix = str(tmp_path / "torch" / "trace_")
    env = {
        "OTEL_FR_ENABLED": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,  # its name before torch 2.9
    }
    with hardware.started(tmp_path / "job", "missing", env, timeout=TIMEOUT) as job:
        result = job.wait(10 * TIMEOUT)
    assert result.returncode != 0, result.output
    written = sorted(path.name for path in (tmp_path / "torch").iterdir())
    record_property("files of the watchdog", ", ".join(written))
    assert written
    for folder in (tmp_path / "torch", result.dumps):
        report = torchrun.Job(result.returncode, result.output, folder).analyze()[1]
        (cause,) = cause_incidents(report["incidents"])
        assert cause["culprit_ranks"] == [1], cause["summary"]
    assert "rank 1" in otel_fr("analyze", tmp_path / "torch").stdout
