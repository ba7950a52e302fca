"""Requests of ranks about their node or their job (`semconv.EVENT_WORKLOAD_CONTROL`)."""

from __future__ import annotations

from typing import NamedTuple

from otel_fr import semconv as names
from otel_fr_collector.otlp.log_records import LogRecord

MAX_REQUESTS = 16
"""Ranks of one run whose requests are kept: the first ones are the nearest to the fault."""
MAX_DESCRIPTION = 200
"""Characters kept of the reason that a rank gives."""


class WorkloadRequest(NamedTuple):
    """One rank's request. ``action``: `semconv.WORKLOAD_STOP` or `semconv.WORKLOAD_EXCLUDE_NODE`."""

    rank: int
    host: str
    action: str
    description: str = ""


def take_request(requests: dict[int, WorkloadRequest], record: LogRecord, rank: int, host: str) -> None:
    """Keep a rank's request. The action ``continue`` withdraws an earlier one.

    Args:
        requests: of the rank's run, by rank.

    Raises:
        ValueError: the event has no known action.
    """
    action = record.text(names.WORKLOAD_ACTION)
    if action not in names.WORKLOAD_ACTIONS:
        raise ValueError(f"{names.WORKLOAD_ACTION} is one of {', '.join(names.WORKLOAD_ACTIONS)}")
    if action == names.WORKLOAD_CONTINUE:
        requests.pop(rank, None)
    elif rank in requests or len(requests) < MAX_REQUESTS:
        description = record.text(names.WORKLOAD_DESCRIPTION)[:MAX_DESCRIPTION]
        requests[rank] = WorkloadRequest(rank, host, action, description)
