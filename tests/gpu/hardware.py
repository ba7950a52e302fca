"""What a test of this suite runs on: the CPU with gloo, or NCCL with one GPU or several."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import simulated_device, torchrun
from tests.support.simulated_device import SimulatedDevice
from tests.support.waiting import PATIENCE

JOB = Path(__file__).with_name("jobs") / "job.py"
SIMULATED = "simulated device"
KINDS_OF_HARDWARE = (SIMULATED, "cpu", "one GPU", "GPUs")
LEAST_RANKS, MOST_RANKS = 3, 8
"""With three ranks, one that differs from the others is in the minority."""
TIMEOUT = 600.0
"""Seconds of PyTorch's timeout, its default for NCCL: otel-fr must be faster."""
SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Settings for ranks that share a GPU. NCCL takes them for several hosts, which use the loopback interface. NCCL 2.30
requires the last setting for these ranks; earlier versions do not know it."""

_FACTS = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": []}
if torch.cuda.is_available():
    found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


@functools.cache
def facts() -> dict[str, Any]:
    """Return the versions of ``torch``, ``cuda`` and (with a GPU) ``nccl``, and the names of the ``gpus``.

    A separate process finds them out, so that this one holds no GPU memory.
    """
    done = subprocess.run([sys.executable, "-c", _FACTS], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        return {"torch": "", "cuda": None, "gpus": [], "error": done.stderr.strip().splitlines()[-1:]}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@dataclass(frozen=True)
class Hardware:
    """``gpus``, ``ranks``: how many a job uses. ``simulated``: the device that simulates the GPUs, if any."""

    name: str
    gpus: int
    ranks: int
    backend: str = "gloo"
    simulated: SimulatedDevice | None = None

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def environment(self) -> dict[str, str]:
        return SHARED if self.gpus and self.ranks > self.gpus else {}

    def started(
        self, folder: Path, kind: str, env: dict[str, str] | None = None, timeout: float = TIMEOUT, faults: str = ""
    ) -> contextlib.AbstractContextManager[torchrun.Started]:
        """Run a job while the block runs. ``faults``: the faults of the simulated device."""
        arguments = (kind, self.backend, str(self.gpus), str(timeout))
        settings = {**self.environment, **(env or {})}
        if self.simulated is not None:
            return self.simulated.started(folder, JOB, *arguments, nproc=self.ranks, faults=faults, env=settings)
        return torchrun.started(folder, str(JOB), *arguments, nproc=self.ranks, env=settings, program=torchrun.FRESH)


def find(name: str) -> Hardware | str:
    """Return the hardware of this name (`KINDS_OF_HARDWARE`), or the reason why this machine does not have it."""
    if name == "cpu":
        return Hardware(name, 0, LEAST_RANKS)
    if name == SIMULATED:
        return Hardware(name, LEAST_RANKS, LEAST_RANKS, "nccl", simulated_device.find())
    gpus = facts()["gpus"]
    if not gpus:
        why = "; ".join(facts().get("error") or []) or f"torch {facts()['torch']} finds no GPU"
        return f"no GPU: {why}"
    if name == "one GPU":
        return Hardware(name, 1, LEAST_RANKS, "nccl")
    if len(gpus) < 2:
        return f"only one GPU: {gpus[0]}"
    used = min(len(gpus), MOST_RANKS)
    return Hardware(f"{used} GPUs", used, max(used, LEAST_RANKS), "nccl")


def driver() -> str:
    """The version of the GPUs' driver. "": not known."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""
    return ""
