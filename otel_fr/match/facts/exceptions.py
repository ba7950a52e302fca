"""What exceptions say of their origin: the own device of a rank, or another rank that they name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from otel_fr.match.model import Call, Evidence

_OF_DEVICE: Final = (
    "CUDA error: ",
    "CUDA driver error: ",
    "CUDA out of memory",
    "Cuda failure ",
    "HIP error: ",
    "unhandled cuda error",
)
"""Parts of what PyTorch (c10/cuda/CUDAException.cpp) and NCCL (``ncclGetLastError``) say of a failed call of CUDA."""
_OF_PEER: Final = ("peer GPU memory", "nvlink")
"""Parts of CUDA's errors (``cudaErrorNvlinkUncorrectable`` and others) that a peer's device may have caused."""


def is_device_error(exception: str) -> bool:
    """The exception tells of an error of the rank's own device: an illegal access, a failed assertion, no memory left.

    Also if a call of NCCL's raised it. (What NCCL raises because a peer has gone is ``ncclRemoteError`` or
    ``ncclSystemError``, or that the communicator was aborted.)
    """
    if not any(part in exception for part in _OF_DEVICE):
        return False
    lower = exception.lower()
    return not any(part.lower() in lower for part in _OF_PEER)


_CHECKPOINT = re.compile(
    r"torch\.distributed\.checkpoint\.api\.CheckpointException: CheckpointException ranks:dict_keys\(\[([0-9, ]+)\]\)"
)
"""Of torch.distributed.checkpoint (api.py): all ranks of a step raise it if one fails. It names those that failed by
their ranks in the step's group."""


def reraised(evidence: Evidence, candidates: Collection[int], by_rank: Mapping[int, Sequence[Call]]) -> set[int]:
    """Those of ``candidates`` that ended by the error of another of them."""
    found: set[int] = set()
    for rank in candidates:
        failed = _failed_ranks(evidence, rank, by_rank.get(rank, ()))
        if failed and rank not in failed and not failed.isdisjoint(candidates):
            found.add(rank)
    return found


def _failed_ranks(evidence: Evidence, rank: int, calls: Sequence[Call]) -> set[int]:
    """The global ranks that its exception names: it was raised after a collective of the step, the rank's newest."""
    named = _CHECKPOINT.match(evidence.ranks[rank].exception)
    if named is None or not calls:
        return set()
    group = evidence.groups.get(max(calls, key=lambda call: call.record).group)
    members = group.ranks if group is not None else ()
    numbers = [int(text) for text in named[1].split(",")]
    return {members[number] for number in numbers} if max(numbers) < len(members) else set()
