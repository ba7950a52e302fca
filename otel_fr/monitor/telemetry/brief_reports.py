"""Makes progress reports brief while the rank moves as usual and the collector knows the texts of its groups.

A brief report omits what an earlier full report contained: its groups have only ids and counts. It also omits the
newest call, and calls that were enqueued a moment ago, because the counts show them. A collector that missed the full
report takes the counts and asks for a full report (docs/reference/rank-report.md). In any case, a full report follows
within `FULL_SECONDS`.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from otel_fr.config import STALL_SHARE
from otel_fr.monitor.rules import WAIT_SECONDS, sparseness
from otel_fr.rank_report import DropCounts, RankReport, ReportedCall, ReportedGroup

FULL_SECONDS = 30.0
"""Longest time between two full reports, in seconds; see `full_seconds`. The first time is shorter, by a random share
of up to a half, because the ranks of a job start together but must not send full reports together."""
STILL_SHARE = STALL_SHARE / 2
"""Reports are full once the rank has not moved for this share of the stall time."""

_IN_FLIGHT = ("scheduled", "unknown")


def full_seconds(world_size: int) -> float:
    """Return `FULL_SECONDS`, or more in large jobs."""
    return FULL_SECONDS * sparseness(world_size)


class BriefReports:
    """Remembers what the last full report contained, and decides the form of the next report."""

    def __init__(self, world_size: int = 1) -> None:
        self._full_seconds = full_seconds(world_size)
        self._groups: dict[str, tuple[object, ...]] | None = None
        self._dropped: DropCounts | None = None
        self._newest = -1
        self._until = 0.0
        self._is_first = True

    def forget(self) -> None:
        """Make the next report full, because the collector asks for it or the rank is in another run."""
        self._groups = None

    def form(self, report: RankReport, now: float, *, is_witness: bool = True) -> RankReport:
        """Return the progress report to send: ``report`` itself, or a brief one without what the collector knows.

        Args:
            now: monotonic.
            is_witness: see `Situation.is_witness`. If False, it is no news that the rank waits.
        """
        short = report if is_witness else _without_evidence(report)
        if now < self._until and self._is_usual(short, is_witness):
            groups = [replace(one, name="", description="", ranks="", backend="", idle_s=None) for one in report.groups]
            told = [call for call in report.in_flight if not self._is_new(call)]
            untold = [call for call in report.in_flight if self._is_new(call) and _is_long(call)]
            return replace(
                short,
                groups=tuple(groups),
                in_flight=tuple(told),
                dropped=None,
                last=None,
                activity=(),
                sampled=None,
                is_brief=True,
                file=report.file,
                unlisted_s=max([_waited(call) or 0.0 for call in untold], default=None),
            )
        self._note(report, now)
        return report

    def _note(self, report: RankReport, now: float) -> None:
        self._groups = {group.id: _texts(group) for group in report.groups}
        self._dropped = report.dropped
        self._newest = max((call.record for call in report.in_flight), default=-1)
        share = random.uniform(0.5, 1.0) if self._is_first else 1.0  # noqa: S311 - spreads the reports
        self._is_first = False
        self._until = now + share * self._full_seconds

    def _is_usual(self, report: RankReport, is_witness: bool) -> bool:
        """Return True if the only news is that the rank has moved, or waits in a call that other ranks report."""
        known = self._groups
        if known is None or report.dropped != self._dropped or report.in_flight_more or report.failed:
            return False
        if report.idle_s is None or (is_witness and report.idle_s >= STILL_SHARE * report.stall_s):
            return False
        said = (report.python_blocked, report.exit, report.exception)
        texts = (report.site, report.stack, report.doing, report.on_hang, report.file, report.exit_message)
        if said != (None, None, None) or any(texts) or report.is_exiting or report.decisions:
            return False
        if any(item.is_overdue for item in report.activity):
            return False
        if is_witness and any(call.state in _IN_FLIGHT and _is_long(call) for call in report.in_flight):
            return False
        groups = report.groups
        return len(groups) == len(known) and all(known.get(group.id) == _texts(group) for group in groups)

    def _is_new(self, call: ReportedCall) -> bool:
        """Return True for a collective that no full report has shown in flight, so that no report must show its end."""
        return call.stream == "collective" and call.record > self._newest and not call.is_posted


def _is_long(call: ReportedCall) -> bool:
    """Return True if a thread waits for the call and has waited long, or for an unknown time."""
    waited = _waited(call)
    return not call.is_posted and (waited is None or waited >= WAIT_SECONDS)


def _waited(call: ReportedCall) -> float | None:
    """Return for how many seconds a thread has waited for the call; None: unknown."""
    return call.age_s if call.wait_s is None else call.wait_s


def _without_evidence(report: RankReport) -> RankReport:
    """Return the report without fields that were collected only because the rank waits, unless they show a fault."""
    if report.python_blocked or report.unreached:
        return report
    return replace(
        report, python_blocked=None, site="", doing="", addresses=(), decisions=(), left_loops=(), patterns=(), file=""
    )


def _texts(group: ReportedGroup) -> tuple[object, ...]:
    """Return what a brief report omits of a group. If its members are unknown, the result equals no earlier one."""
    known = group.ranks or object()
    return group.name, group.description, known, group.backend, group.is_destroyed
