"""Finds where this rank runs: its host, its GPU, and in Kubernetes its pod, node and namespace."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from otel_fr import semconv as names
from otel_fr.config import LOCAL_RANKS, resource_attributes
from otel_fr.platform_attributes import platform_attributes

_SPAWNED = ("_wrap", "torch.multiprocessing.spawn")
"""The function, and its module, that calls the function passed to `torch.multiprocessing.spawn`."""


def place_of(torch: Any, group: Any, local_rank: int, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the keys ``host``, ``gpu``, ``pod``, ``node`` and ``namespace`` of a ring's meta, as far as known.

    Args:
        torch: the module.
        group: the process group that was created last.
    """
    known = {**platform_attributes(env), **resource_attributes(env)}
    found = {"host": socket.gethostname(), "gpu": ""}
    found |= {"pod": known.get(names.K8S_POD_NAME, ""), "node": known.get(names.K8S_NODE_NAME, "")}
    found["namespace"] = known.get(names.K8S_NAMESPACE, "")
    with contextlib.suppress(Exception):  # a torch without CUDA, a driver that does not answer
        found["gpu"] = gpu_of(torch, group, local_rank, env.get("CUDA_VISIBLE_DEVICES"))
    return {key: text for key, text in found.items() if text}


def spawned_rank(env: Mapping[str, str] = os.environ) -> int | None:
    """Return the index that ``torch.multiprocessing.spawn`` gave this process, if the calling thread runs the function
    passed to it.

    None: this function did not start the process, or a launcher's variable gives the local rank. If Slurm or Open MPI
    start one task on each node, their variables are 0 in all processes that the task spawns.
    """
    torchruns, *others = (env.get(name, "").strip() for name in LOCAL_RANKS)
    if torchruns or not {"", "0"}.issuperset(others):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name, frame.f_globals.get("__name__")) != _SPAWNED:
        frame = frame.f_back
    index = None if frame is None else frame.f_locals.get("i")
    return index if isinstance(index, int) else None


def gpu_of(torch: Any, group: Any, local_rank: int, visible: str | None) -> str:
    """Return the index or UUID of this rank's GPU among the GPUs of its host, or "" if it is uncertain.

    The GPU is certain if the process sees only one, if the program has bound the group to a GPU
    (``init_process_group(device_id=...)``), or if the current GPU's index is the local rank, as after
    ``torch.cuda.set_device(local_rank)``. GPU 0 is also the current GPU of a rank that has chosen none.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``; None: not set.
    """
    seen = None
    if visible is not None:
        words = (word.strip() for word in visible.split(","))
        seen = list(itertools.takewhile(_is_gpu, filter(None, words)))
    if seen is not None and len(seen) == 1:
        return seen[0]
    bound = getattr(group, "bound_device_id", None)
    index = bound.index if bound is not None and bound.type == "cuda" else None
    if index is None and torch.cuda.is_initialized() and torch.cuda.current_device() == local_rank:
        index = local_rank
    if index is None or seen is None:
        return "" if index is None else str(index)
    return seen[index] if index < len(seen) else ""


def _is_gpu(word: str) -> bool:
    """Return True for an index or a UUID. CUDA ignores any other word and all words after it: "-1" hides all GPUs."""
    return word.isdecimal() or word.startswith(("GPU-", "MIG-"))
