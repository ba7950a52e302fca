"""The uncaught exceptions in a ring, in the form of rank reports and flight-recorder files."""

from __future__ import annotations

from collections.abc import Mapping

from otel_fr.rank_report import ReportedException
from otel_fr.ring import MAIN_THREAD, RingReader


def reported_exception(reader: RingReader) -> ReportedException | None:
    """The main thread's exception. None: the ring contains none."""
    recorded = reader.exception
    return _reported(recorded) if recorded else None


def reported_thread_exceptions(reader: RingReader) -> tuple[ReportedException, ...]:
    """The exceptions of other threads, oldest first."""
    return tuple([_reported(recorded) for recorded in reader.thread_exceptions if recorded])


def _reported(recorded: Mapping[str, object]) -> ReportedException:
    texts = (str(recorded.get(key) or "") for key in ("type", "message", "stack", "site", "thread"))
    type_, message, stack, site, thread = texts
    return ReportedException(type_, message, stack, site, "" if thread == MAIN_THREAD else thread)
