"""Why an incident is over."""

from __future__ import annotations

from enum import Enum

from otel_fr.incident import ResolutionName
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.stops import has_ended

UNHEARD_SECONDS = 600.0
"""Seconds without telemetry of a run after which its incidents are resolved."""
ENDED_SECONDS = 10.0
"""The same of a run all of whose ranks have ended: monitors send the last that they have after the end, as the paths of
files, and what could not be sent at first. It may correct the verdict."""


class Resolution(Enum):
    """Why an incident has ended."""

    _value_: ResolutionName

    OVER = "over"
    """The fault is: its ranks continue, or have ended well."""
    ENDED = "ended"
    """All ranks of the job have, because of the fault."""
    STOPPED = "stopped"
    """The job was stopped from outside."""
    REPLACED = "replaced"
    """The job continues in another run: a newer attempt, or without the ranks that failed."""
    UNHEARD = "unheard"
    """The run has sent nothing for `UNHEARD_SECONDS`."""
    DROPPED = "dropped"
    """There were too many open incidents."""


def why_over(run: Run, now: float, *, is_judged: bool) -> Resolution | None:
    """Why the incidents of a run end although their faults do not; None: they do not.

    Args:
        is_judged: no judgement of it is in progress.
    """
    if run.is_replaced:
        return Resolution.REPLACED
    quiet = now - run.last_seen
    is_settled = is_judged and not run.has_news and run.mismatch_since is None and run.bad_end_since is None
    if quiet > ENDED_SECONDS and is_settled and has_ended(run):
        return Resolution.ENDED
    return Resolution.UNHEARD if quiet > UNHEARD_SECONDS else None
