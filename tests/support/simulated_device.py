"""Jobs of PyTorch's ProcessGroupNCCL on the simulated device: tests/simulated_device/README.md.

The tests themselves run with the torch of ``.venv``; their jobs run with the CUDA build of ``make simulated-device``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.simulated_device.install import CACHE, DEFAULT_TORCH, Place
from tests.support import torchrun, warm
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class SimulatedDevice:
    """A Python with otel-fr and a torch for CUDA on the simulated device.

    Methods that start programs take ``faults`` (SIMDEV_FAULTS), ``control`` (a file of faults that may change while the
    program runs) and ``env`` (added to its environment).
    """

    place: Place

    @property
    def python(self) -> Path:
        return self.place.python

    @property
    def bin(self) -> Path:
        return self.place.bin

    def env(self, faults: str = "", control: Path | None = None, env: dict[str, str] | None = None) -> dict[str, str]:
        """Return the variables to add to the environment of a program with this torch. ``env`` takes precedence."""
        found = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(CACHE)}
        if faults:
            found["SIMDEV_FAULTS"] = faults
        if control:
            found["SIMDEV_CONTROL"] = str(control)
        return {**found, **(env or {})}

    def started(
        self, folder: Path, script: Path | str, *arguments: str, nproc: int = 2, **settings: Any
    ) -> contextlib.AbstractContextManager[torchrun.Started]:
        """Run a job under torchrun during the block."""
        env = self.env(**settings)
        program: Sequence[str] = warm.torchrun(str(self.python))
        if warm.FRESH or any(name.startswith("SIMDEV_") for name in env):  # read when torch is imported
            program = [str(self.python), "-m", "torch.distributed.run"]
        return torchrun.started(folder, str(script), *arguments, nproc=nproc, env=env, program=program)

    def run(self, folder: Path, script: Path | str, *arguments: str, **options: Any) -> torchrun.Job:
        """Run a job under torchrun to its end."""
        with self.started(folder, script, *arguments, **options) as job:
            return job.wait()

    def run_python(self, script: Path | str, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run one process of this torch, without torchrun, to its end."""
        command = [str(self.python), str(script), *arguments]
        env = {**torchrun.base_environment(), **self.env(**settings)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


def find() -> SimulatedDevice:
    """Return the simulated device with the tests' version of torch. Skips the test if it is not set up."""
    place = Place(DEFAULT_TORCH)
    if not place.is_ready():
        pytest.skip("the simulated device is not set up for the present sources: make simulated-device")
    return SimulatedDevice(place)
