"""Real torchrun jobs whose calls are read from PyTorch's own recorder alone (``OTEL_FR_CAPTURE=native``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

pytestmark = [
    *torchrun.needed,
    pytest.mark.skipif(
        'tuple(map(int, __import__("torch").__version__.split(".")[:2])) < (2, 10)',
        reason="the recorder of gloo's groups cannot be asked in this torch",
    ),
]
NATIVE = {"OTEL_FR_CAPTURE": "native"}


@pytest.mark.parametrize(("fault", "culprit"), [("missing", 1), pytest.param("operation", 2, marks=pytest.mark.long)])
def test_a_fault_is_named_live_and_from_the_files(fault: str, culprit: int, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "fault.py", fault, env={**torchrun.endpoint(running), **NATIVE})
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    _, report = job.analyze()
    for incidents in (running.causes(), cause_incidents(report["incidents"])):
        assert [incident["culprit_ranks"] for incident in incidents] == [[culprit]]
        assert incidents[0]["sequence_id"] == 2


def test_a_healthy_job_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), **NATIVE}
        job = torchrun.run(tmp_path / "job", "fault.py", "healthy", env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []
    assert "WorkerServer" not in job.output
