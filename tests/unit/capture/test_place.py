"""Where a rank runs, as its own process knows it: the GPU only if it is certain."""

from __future__ import annotations

import importlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture.place import gpu_of, place_of, spawned_rank


def torch(current: int | None = None) -> Any:
    """A stand-in for the module: the current GPU; None: CUDA is not initialised."""
    cuda = SimpleNamespace(is_initialized=lambda: current is not None, current_device=lambda: current)
    return SimpleNamespace(cuda=cuda)


def group(device: str = "", index: int | None = None) -> Any:
    """A stand-in for a process group: the device that the program has bound it to."""
    return SimpleNamespace(bound_device_id=SimpleNamespace(type=device, index=index) if device else None)


@pytest.mark.parametrize(
    # current GPU, bound device, local rank, CUDA_VISIBLE_DEVICES: the GPU
    ("current", "bound", "local_rank", "visible", "gpu"),
    [
        (None, group(), 3, None, ""),
        (None, group(), 3, "5", "5"),
        (None, group(), 3, "GPU-8f2c", "GPU-8f2c"),
        (None, group(), 0, "", ""),
        (None, group(), 0, "-1", ""),
        (None, group(), 0, "NoDevFiles", ""),
        (None, group(), 0, "2,-1,3", "2"),
        (None, group("cuda", 3), 3, None, "3"),
        (None, group("cuda", 3), 3, "4,5,6,7", "7"),
        (None, group("cpu"), 3, None, ""),
        (3, group(), 3, None, "3"),
        (3, group(), 3, "4,5, 6,7", "7"),
        (0, group(), 3, None, ""),
        (0, group("cuda", 2), 3, None, "2"),
        (9, group(), 9, "4,5", ""),
    ],
)
def test_the_gpu_is_told_only_if_it_is_certain(
    current: int | None, bound: Any, local_rank: int, visible: str | None, gpu: str
) -> None:
    assert gpu_of(torch(current), bound, local_rank, visible) == gpu


def test_a_torch_that_fails_leaves_the_gpu_unknown() -> None:
    assert place_of(object(), None, 0, {}) == {"host": socket.gethostname()}


def test_a_pod_knows_its_name_and_its_node() -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "llama-worker-3", "NODE_NAME": "gpu-17"}
    env["POD_NAMESPACE"] = "train"
    found = {"host": socket.gethostname(), "pod": "llama-worker-3", "node": "gpu-17", "namespace": "train"}
    assert place_of(torch(), group(), 0, env) == found
    given = {**env, "OTEL_RESOURCE_ATTRIBUTES": "k8s.node.name=gpu-18"}
    assert place_of(torch(), group(), 0, given) == {**found, "node": "gpu-18"}


def test_a_rank_that_torch_has_spawned_has_the_index_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = importlib.import_module("torch.multiprocessing.spawn")
    monkeypatch.setattr(spawn, "_prctl_pr_set_pdeathsig", lambda _: None)
    found: list[int | None] = []

    def train(index: int, env: dict[str, str]) -> None:
        found.append(spawned_rank(env))

    for env in ({}, {"LOCAL_RANK": "0"}, {"SLURM_LOCALID": "0"}, {"SLURM_LOCALID": "1"}):
        spawn._wrap(train, 3, (env,), "")
    assert found == [3, None, 3, None]
    assert spawned_rank({}) is None
