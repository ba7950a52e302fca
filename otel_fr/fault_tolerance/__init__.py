"""The job reports its progress to otel-fr, and otel-fr informs the job of failed peers. Imports no torch.

`RankMonitorClient` and the names exported with it have the names of nvidia-resiliency-ext.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_fr.fault_tolerance.client import (
        RankMonitorClient,
        RankMonitorClientError,
        WorkloadAction,
        WorkloadControlRequest,
    )

__all__ = ["RankMonitorClient", "RankMonitorClientError", "WorkloadAction", "WorkloadControlRequest"]


def __getattr__(name: str) -> Any:
    """Import the client when it is first used, so that other ranks do not load it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from otel_fr.fault_tolerance import client

    found = globals()[name] = getattr(client, name)
    return found
