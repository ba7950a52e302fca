"""What other tests build on: a job on NCCL under otel-fr, with a fault that comes and goes while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated_device.install import Place
from tests.support import simulated_device as support
from tests.support import torchrun
from tests.support.simulated_device import SimulatedDevice, write_faults
from tests.support.waiting import until

JOB = Path(__file__).with_name("jobs") / "hang.py"


@pytest.mark.torchrun
@pytest.mark.long
def test_a_rank_whose_device_stops_is_named(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    control, end = tmp_path / "faults", tmp_path / "end"
    with (
        torchrun.collector(tmp_path / "collector") as collector,
        simulated_device.started(tmp_path / "job", JOB, str(end), control=control, collector=collector) as job,
    ):
        until(lambda: collector.metric("otel_fr_collector_ranks") == 2 or None)
        write_faults(control, "stuck rank=1")
        incident = collector.wait_cause()
        assert incident["culprit_ranks"] == [1]
        write_faults(control)
        end.touch()
        assert job.wait().returncode == 0


def test_where_it_is_not_set_up_tests_say_how_to_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "is_ready", lambda _: False)
    with pytest.raises(pytest.skip.Exception, match="make simulated-device"):
        support.find()
