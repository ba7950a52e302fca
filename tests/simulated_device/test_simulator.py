"""The simulated device does what the real one does, as far as jobs under PyTorch can see."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.simulated_device.install import Place
from tests.support import simulated_device as support
from tests.support.simulated_device import SimulatedDevice
from tests.support.torchrun import Job

JOBS = Path(__file__).with_name("jobs")
SHARED_MEMORY = Path("/dev/shm")
pytestmark = pytest.mark.torchrun


def direct(device: SimulatedDevice, case: str, faults: str = "", control: Path | None = None) -> str:
    """Run a case of jobs/direct.py, which must succeed, and return its output."""
    libraries = str(device.place.libraries)
    done = device.run_python(JOBS / "direct.py", case, libraries, faults=faults, control=control)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_right(job: Job) -> None:
    assert job.returncode == 0, job.output


def test_streams_events_graphs_and_memory(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    control = tmp_path / "faults"
    env = {"SIMDEV_DEVICES": "3", "SIMDEV_MEMORY_MB": "1024"}
    done = simulated_device.run_python(JOBS / "device.py", control=control, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(str(control)) == 1, "the mistake in the control file is reported once"


def test_each_operation_gives_its_values(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    assert_right(simulated_device.run(tmp_path, JOBS / "values.py", nproc=3))


def test_each_fault_acts_and_can_be_lifted(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    control = tmp_path / "faults"
    env = {"TORCH_NCCL_ENABLE_TIMING": "1"}
    assert_right(simulated_device.run(tmp_path, JOBS / "faults.py", control=control, env=env))


def test_a_rank_that_does_not_join_holds_up_the_others(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    direct(simulated_device, "init_hang", control=tmp_path / "faults")


def test_kernels_of_a_communicator_execute_in_the_order_of_their_calls(simulated_device: SimulatedDevice) -> None:
    direct(simulated_device, "order", "endless")


MISTAKES = ["stuk", "late", "late ms=x", "stuck ms=1", "stuck rank=x", "stuck; endless soon=1"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_faults_ends_the_program(simulated_device: SimulatedDevice, mistake: str) -> None:
    libraries = str(simulated_device.place.libraries)
    done = simulated_device.run_python(JOBS / "direct.py", "init", libraries, faults=mistake)
    assert done.returncode == 2
    assert done.stderr.count("SIMDEV_FAULTS") == 1


def test_nothing_is_left_of_a_rank_that_was_killed_while_it_joined(simulated_device: SimulatedDevice) -> None:
    def left() -> set[str]:
        return {path.name for path in SHARED_MEMORY.glob("simulated-nccl-*")}

    arguments = (JOBS / "direct.py", "killed in init", simulated_device.place.libraries)
    command = [str(simulated_device.python), *map(str, arguments)]
    others = left()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "SIMDEV_TRACE": "1"}) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"joins\n"
        while not (own := left() - others):
            assert killed.poll() is None
        direct(simulated_device, "init")
        assert own <= left(), "a rank that lives still joins"
        killed.kill()
    direct(simulated_device, "init")
    assert not own & left()


def test_where_it_is_not_set_up_tests_say_how_to_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "is_ready", lambda _: False)
    with pytest.raises(pytest.skip.Exception, match="make simulated-device"):
        support.find()
