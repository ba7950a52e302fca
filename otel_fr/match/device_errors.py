"""Exceptions that come from a rank's own device: no other rank's fault causes them."""

from __future__ import annotations

from typing import Final

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
