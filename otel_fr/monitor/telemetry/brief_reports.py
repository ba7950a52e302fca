"""Which progress reports are brief: the rank moves as usual, and the collector knows the texts of its groups.

A brief report is a rank report like any other, without what an earlier full one contained: its groups have their ids
and
counts only, calls that were enqueued a moment ago are left out (the counts show them), and so is the newest call. A
collector that missed the full report takes the counts and asks for a full one (docs/reference/rank-report.md); a full
one comes anyway within `FULL_SECONDS`.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from otel_fr.config import STALL_SHARE
from otel_fr.monitor.rules import WAIT_SECONDS, patience
from otel_fr.rank_report import DropCounts, RankReport, ReportedCall, ReportedGroup

FULL_SECONDS = 30.0
"""Seconds after which a report is full again, whatever was sent; the first time after half of it or more, so that
the ranks of a job, which start together, do not send theirs together."""
STILL_SHARE = STALL_SHARE / 2
"""Share of the stall time without a movement from which reports are full."""

_IN_FLIGHT = ("scheduled", "unknown")


class BriefReports:
    """What the last report contained, and the form of the next one."""

    def __init__(self, world_size: int = 1) -> None:
        self._longest_wait = WAIT_SECONDS * patience(world_size)
        self._groups: dict[str, tuple[object, ...]] | None = None
        self._dropped: DropCounts | None = None
        self._newest = -1
        self._until = 0.0
        self._is_first = True

    def forget(self) -> None:
        """The next report is full: the collector asks for it, or the rank is in another run."""
        self._groups = None

    def form(self, report: RankReport, now: float) -> RankReport:
        """The progress report to send: ``report`` itself, or without what the collector knows. ``now``: monotonic."""
        if now < self._until and self._is_usual(report):
            told = [call for call in report.in_flight if not self._is_new(call)]
            return replace(
                report,
                groups=tuple([_counts(group) for group in report.groups]),
                in_flight=tuple(told),
                dropped=None,
                last=None,
                activity=(),
                sampled=None,
                is_brief=True,
            )
        self._note(report, now)
        return report

    def _note(self, report: RankReport, now: float) -> None:
        self._groups = {group.id: _texts(group) for group in report.groups}
        self._dropped = report.dropped
        self._newest = max((call.record for call in report.in_flight), default=-1)
        share = random.uniform(0.5, 1.0) if self._is_first else 1.0  # noqa: S311 - spreads the reports
        self._is_first = False
        self._until = now + share * FULL_SECONDS

    def _is_usual(self, report: RankReport) -> bool:
        """The only news is that the rank has moved."""
        known = self._groups
        if known is None or report.dropped != self._dropped or report.in_flight_more or report.failed:
            return False
        if report.idle_s is None or report.idle_s >= STILL_SHARE * report.stall_s:
            return False
        said = (report.python_blocked, report.exit, report.exception)
        texts = (report.site, report.stack, report.doing, report.on_hang, report.file, report.exit_message)
        if said != (None, None, None) or any(texts) or report.is_exiting or report.decisions:
            return False
        if any(item.is_overdue for item in report.activity):
            return False
        if any(call.state in _IN_FLIGHT and self._is_long(call) for call in report.in_flight):
            return False
        groups = report.groups
        return len(groups) == len(known) and all(known.get(group.id) == _texts(group) for group in groups)

    def _is_new(self, call: ReportedCall) -> bool:
        """Left out: a collective of a moment ago that no report has shown in flight, so that none must show its end."""
        return call.stream == "collective" and call.record > self._newest and not call.is_posted

    def _is_long(self, call: ReportedCall) -> bool:
        """It is waited for, and has been in flight for long, or nothing is known of its age."""
        if call.is_posted:
            return False
        age = call.age_s if call.wait_s is None else call.wait_s
        return age is None or age >= self._longest_wait


def _texts(group: ReportedGroup) -> tuple[object, ...]:
    """What a brief report leaves out of a group. Groups whose members are not known are in each report in full."""
    known = group.ranks or object()
    return group.name, group.description, known, group.backend, group.is_destroyed


def _counts(group: ReportedGroup) -> ReportedGroup:
    return replace(group, name="", description="", ranks="", backend="", idle_s=None)
