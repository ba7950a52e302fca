"""How to ask a running process for PyTorch's own flight recorder of NCCL's calls."""

from __future__ import annotations

from typing import Final

SOCKET_KEY: Final = "recorder_socket"
"""In a ring's meta: path of the Unix socket on which the rank's ``_WorkerServer`` of torch listens."""

DUMP_TARGET: Final = "/handler/dump_nccl_trace_json?includecollectives=true&onlyactive=false"
"""POST: all entries, as JSON. Only this handler shows ProcessGroupNCCL's own recorder (torch 2.6 to 2.14)."""


_FOLLOWED: Final = frozenset({"nccl2", "nccl2-lazy"})
"""Backends of devices without a recorder. The compiled engine writes to the ring how far their calls are."""


def is_of_device(backend: str) -> bool:
    """True if PyTorch's recorder knows when devices complete the calls of this backend (its name in torch)."""
    return backend == "nccl"


def is_followed(backend: str) -> bool:
    """True if the ring may show when devices begin and end the calls of this backend, as PyTorch sees it."""
    return backend in _FOLLOWED


def ends_are_seen(backend: str) -> bool:
    """True if this backend's calls run on a device, and count as ended when PyTorch sees their end."""
    return is_of_device(backend) or is_followed(backend)
