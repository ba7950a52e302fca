"""What a job tells otel-fr of its progress, and what otel-fr tells the job. Imports no torch.

`RankMonitorClient` and what belongs to it have the names that nvidia-resiliency-ext gives them.
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
    """Imported when first used: a rank that does not use the client does not load it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from otel_fr.fault_tolerance import client

    found = globals()[name] = getattr(client, name)
    return found
