"""GPUs, by a fake of the module pynvml: this machine has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from otel_fr.checks import gpu
from otel_fr.checks.gpu import check_gpus, check_memory
from otel_fr.checks.model import Outcome, Status

MIB = 1 << 20


class NotSupportedError(Exception):
    """As ``pynvml.NVMLError_NotSupported``."""

    value = 3


@dataclass
class FakeNvml:
    """As many GPUs as there are lists; each look at one takes the next number of MiB in use, and the last again.

    A GPU with an empty list uses the host's memory.
    """

    used: list[list[float]]
    broken: int | None = None
    pids: list[int] = field(default_factory=list)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == self.broken:
            raise RuntimeError("GPU is lost")
        if index >= len(self.used):
            raise RuntimeError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        own = self.used[handle]
        if not own:
            raise NotSupportedError
        return SimpleNamespace(used=int((own.pop(0) if len(own) > 1 else own[0]) * MIB))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]


@pytest.fixture
def now() -> list[float]:
    return [0.0]


def memory(nvml: FakeNvml, now: list[float], **env: str) -> Outcome:
    def sleep(seconds: float) -> None:
        now[0] += seconds

    return check_memory(50.0, 512.0, 2.0, lambda: nvml, env, sleep, lambda: now[0])


def test_all_gpus_answer() -> None:
    assert check_gpus(None, lambda: FakeNvml([[0], [0]])) == (Status.OK, "2 answer")
    assert check_gpus(2, lambda: FakeNvml([[0], [0]])).status is Status.OK


def test_a_gpu_that_is_lost_fails_and_is_named() -> None:
    found = check_gpus(None, lambda: FakeNvml([[0], [0]], broken=1))
    assert found == (Status.FAILED, "GPU 1 does not answer: GPU is lost")


def test_too_few_gpus_fail() -> None:
    assert check_gpus(8, lambda: FakeNvml([[0]] * 7)) == (Status.FAILED, "7 found, 8 expected")
    assert check_gpus(8, lambda: None).status is Status.FAILED


def test_a_node_without_gpus_is_fine_unless_some_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("NVML Shared Library Not Found")

    monkeypatch.setattr(gpu, "_DEVICE_FILES", "/nothing/nvidia*")
    assert check_gpus(None, lambda: None).status is Status.SKIPPED
    assert check_gpus(None, broken).status is Status.SKIPPED
    assert check_gpus(1, broken).status is Status.FAILED


def test_memory_that_is_given_back_later_is_waited_for(now: list[float]) -> None:
    found = memory(FakeNvml([[40_000, 40_000, 300], [0]]), now)
    assert found == (Status.OK, "at most 300 MiB in use on 2 GPUs")
    assert now == [4.0]


def test_memory_that_stays_in_use_fails_with_its_processes(now: list[float]) -> None:
    found = memory(FakeNvml([[0], [40_000]], pids=[4711]), now)
    assert found.status is Status.FAILED
    assert "GPU 1: 40000 MiB (processes 4711)" in found.text
    assert "GPU 0" not in found.text
    assert now == [50.0]


def test_only_the_gpus_of_this_job_are_looked_at(now: list[float]) -> None:
    busy = FakeNvml([[0], [40_000], [0]])
    assert memory(busy, now, CUDA_VISIBLE_DEVICES="0,2").status is Status.OK
    assert memory(busy, now, CUDA_VISIBLE_DEVICES="GPU-0,GPU-2").status is Status.OK
    assert memory(busy, now, CUDA_VISIBLE_DEVICES="").status is Status.SKIPPED
    assert memory(busy, now, CUDA_VISIBLE_DEVICES="0,9,1").status is Status.OK
    assert memory(busy, now, CUDA_VISIBLE_DEVICES="1").status is Status.FAILED


def test_a_gpu_that_uses_the_hosts_memory_answers(now: list[float]) -> None:
    assert check_gpus(1, lambda: FakeNvml([[]])) == (Status.OK, "1 answer")
    assert memory(FakeNvml([[]]), now).status is Status.SKIPPED
    assert memory(FakeNvml([[], [300]]), now) == (Status.OK, "at most 300 MiB in use on 1 GPUs")
