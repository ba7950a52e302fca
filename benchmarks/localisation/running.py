"""Runs one program under torchrun while tools watch. Tools answer from what the job leaves."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.localisation.catalogue import Program
from tests.support import torchrun, warm
from tests.support.commands import BIN
from tests.support.paths import ROOT
from tests.support.processes import kill
from tests.support.simulated_device import SimulatedDevice
from tests.support.waiting import wait_for

START_SECONDS = 420.0
"""Limit for the start of a job, and for its fault. A job that takes longer shows nothing about any tool."""
TIMEOUT = 12.0
"""PyTorch's timeout of a call. The default is 600 s on NCCL and 1,800 s on gloo: tools that wait for it are as late."""
ASK_AFTER = 5.0
"""Seconds from the fault until the benchmark asks for PyTorch's files, if PyTorch does not write them itself."""
FILES_SECONDS = 60.0
"""Seconds after the timeout in which PyTorch's watchdog writes files and ends the ranks."""
RAISED_SECONDS = 6.0
"""The same on gloo, where the timeout raises an exception."""
SETTLE_SECONDS = 3.0
HEALTHY_ASK = 3.0
HEALTHY_SECONDS = 180.0
PREFIX = "trace_"
TIMED = "-timed"


@dataclass(frozen=True)
class Setting:
    """Where programs run.

    Attributes:
        name: the backend's name; ``"nccl-timed"`` is ``nccl`` with ``TORCH_NCCL_ENABLE_TIMING=1``.
        device: the simulated device; None: gloo, with this Python's torch.
    """

    name: str
    device: SimulatedDevice | None

    @property
    def backend(self) -> str:
        """PyTorch's name of the backend."""
        return self.name.removesuffix(TIMED)

    @property
    def bin(self) -> Path:
        """The folder of the jobs' Python programs."""
        return self.device.bin if self.device else BIN


@dataclass
class Finished:
    """A finished job.

    Attributes:
        lines: (time, line) of its output. fault_at: when the last of its faults began; None: it has no fault.
    """

    program: Program
    setting: Setting
    folder: Path
    lines: list[tuple[float, str]] = field(default_factory=list)
    fault_at: float | None = None

    @property
    def output(self) -> str:
        return "".join(line for _, line in self.lines)

    def newest(self, folder: str) -> float | None:
        """Return when the last of these files was complete; None: there are no files."""
        return max((path.stat().st_mtime for path in (self.folder / folder).glob("*")), default=None)


class NotStartedError(Exception):
    """The job did not come to its fault in time, because the machine is too busy or the program is broken."""


class EndedEarlyError(NotStartedError):
    """The job ended before its fault, or it has no fault and failed."""


class _Reader(threading.Thread):
    def __init__(self, process: subprocess.Popen[str], lines: list[tuple[float, str]]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._lines = lines
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append((time.time(), line))


def run(program: Program, setting: Setting, folder: Path, env: Mapping[str, str]) -> Finished:
    """Run the program until its fault has had all consequences. ``env``: the tools' variables.

    Raises:
        NotStartedError: the job did not come to its fault.
    """
    job = Finished(program, setting, folder)
    (folder / "torch").mkdir()
    with _started(program, setting, folder, env) as process:
        reader = _Reader(process, job.lines)
        try:
            _follow(job, process)
        finally:
            _finish(job, process)
            reader.join()
            (folder / "output.txt").write_text(job.output)
    time.sleep(SETTLE_SECONDS)
    return job


def environment(program: Program, setting: Setting, folder: Path) -> dict[str, str]:
    """Return the job's environment. PyTorch's recorder and its files are on. Calls are timed only in timed settings."""
    own = {
        "LOCALISATION_BACKEND": setting.backend,
        "LOCALISATION_FOLDER": str(folder),
        "LOCALISATION_TIMEOUT": str(TIMEOUT),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'collector'}",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "torch" / PREFIX),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
    }
    if setting.name.endswith(TIMED):
        own["TORCH_NCCL_ENABLE_TIMING"] = "1"
    if setting.device is None:
        return own
    control = folder / "device" if program.needs == "simulated device" else None
    return {**setting.device.env(control=control), **own}


def _started(program: Program, setting: Setting, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    python = str(setting.bin / "python")
    is_plain = warm.FRESH or program.needs in ("simulated device", "plain start")
    command = [python, "-m", "torch.distributed.run"] if is_plain else warm.torchrun(python)
    return torchrun.start(
        folder, str(program.script), *program.arguments, nproc=program.world, program=command,
        env={**environment(program, setting, folder), **env},
    )  # fmt: skip


def _follow(job: Finished, process: subprocess.Popen[str]) -> None:
    """Wait until the job has shown all that it can."""
    world = job.program.world
    wait_for(lambda: len(_marks(job, "started")) == world or process.poll() is not None, START_SECONDS)
    if len(_marks(job, "started")) < world:
        raise NotStartedError(f"{len(_marks(job, 'started'))} of {world} ranks came: {_tail(job)}")
    if job.program.is_healthy:
        time.sleep(HEALTHY_ASK)
        (job.folder / "ask").touch()
        if wait_for(lambda: process.poll() is not None, HEALTHY_SECONDS) and process.returncode:
            raise EndedEarlyError(f"a healthy job failed: {_tail(job)}")
        return
    wait_for(lambda: _marks(job, "fault") or process.poll() is not None, START_SECONDS)
    if not _marks(job, "fault"):
        raise EndedEarlyError(f"it ended without its fault: {_tail(job)}")
    begun = time.monotonic()

    def over(seconds: float) -> bool:
        return wait_for(lambda: process.poll() is not None, begun + seconds - time.monotonic())

    is_gloo = job.setting.backend == "gloo"
    if not over(ASK_AFTER):
        if is_gloo:
            (job.folder / "ask").touch()
        over(TIMEOUT + (RAISED_SECONDS if is_gloo else FILES_SECONDS))
    job.fault_at = max(_marks(job, "fault"))


def _marks(job: Finished, name: str) -> list[float]:
    return [float(path.read_text()) for path in job.folder.glob(f"{name}_*")]


def _tail(job: Finished) -> str:
    return "".join(line for _, line in job.lines[-12:])


def _finish(job: Finished, process: subprocess.Popen[str]) -> None:
    """End the processes that still run, as a launcher does, but without its grace of 30 seconds."""
    started = {int(number) for name in ("started", "server") for number in _marks(job, name)}
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: process.poll() is not None, RAISED_SECONDS)
    for pid, is_stopped in _processes(job.folder):
        if pid in started or is_stopped:  # processes of a lost host are stopped, too
            kill(pid)
    if not wait_for(lambda: process.poll() is not None, START_SECONDS):
        process.kill()


def _processes(folder: Path) -> Iterator[tuple[int, bool]]:
    """Yield the processes that were started in this folder: (process id, is stopped)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if (entry / "cwd").readlink() == folder:
                    status = (entry / "status").read_text()
                    yield int(entry.name), re.search(r"^State:\s+T", status, re.MULTILINE) is not None
