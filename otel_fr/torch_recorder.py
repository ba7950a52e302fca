"""PyTorch's own flight recorder of NCCL's calls, as a process that runs can be asked for it."""

from __future__ import annotations

from typing import Final

SOCKET_KEY: Final = "recorder_socket"
"""In a ring's meta: path of the Unix socket on which torch's ``_WorkerServer`` of the rank listens."""

DUMP_TARGET: Final = "/handler/dump_nccl_trace_json?includecollectives=true&onlyactive=false"
"""POST: all entries, as JSON. ProcessGroupNCCL has a recorder of its own, which only this handler shows (torch 2.6 to
2.14)."""


_FOLLOWED: Final = frozenset({"nccl2", "nccl2-lazy"})
"""Backends of devices without a recorder: the compiled engine sees how far their calls are, and the ring has it."""


def is_of_device(backend: str) -> bool:
    """True if PyTorch's recorder knows when devices complete the calls of this backend (torch's name of it)."""
    return backend == "nccl"


def is_followed(backend: str) -> bool:
    """True if the ring may have when devices begin and end the calls of this backend, as PyTorch sees it."""
    return backend in _FOLLOWED


def ends_are_seen(backend: str) -> bool:
    """True if the calls of this backend run on a device, and end when PyTorch sees that they have."""
    return is_of_device(backend) or is_followed(backend)
