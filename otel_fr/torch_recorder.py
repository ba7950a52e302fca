"""PyTorch's own flight recorder of NCCL's calls, as a process that runs can be asked for it."""

from __future__ import annotations

from typing import Final

SOCKET_KEY: Final = "recorder_socket"
"""In a ring's meta: path of the Unix socket on which torch's ``_WorkerServer`` of the rank listens."""

DUMP_TARGET: Final = "/handler/dump_nccl_trace_json?includecollectives=true&onlyactive=false"
"""POST: all entries, as JSON. ProcessGroupNCCL has a recorder of its own, which only this handler shows (torch 2.6 to
2.14)."""


def is_of_device(backend: str) -> bool:
    """True if PyTorch's recorder knows when devices complete the calls of this backend (torch's name of it)."""
    return backend == "nccl"
