"""Which progress reports are brief: the rank moves as usual, and the collector knows the texts of its groups.

A brief report is a rank report like any other, without what an earlier full one contained: its groups have their ids
and counts only, calls that were enqueued a moment ago are left out (the counts show them), and so is the newest call.
A collector that missed the full report takes the counts and asks for a full one (docs/reference/rank-report.md); a
full one comes anyway within `FULL_SECONDS`.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from otel_fr.config import STALL_SHARE
from otel_fr.monitor.rules import WAIT_SECONDS, sparseness
from otel_fr.rank_report import DropCounts, RankReport, ReportedCall, ReportedGroup

FULL_SECONDS = 30.0
"""Seconds after which a report is full again, whatever was sent; the first time after half of it or more, so that
the ranks of a job, which start together, do not send theirs together. See `full_seconds`."""
STILL_SHARE = STALL_SHARE / 2
"""Share of the stall time without a movement from which reports are full."""

_IN_FLIGHT = ("scheduled", "unknown")


def full_seconds(world_size: int) -> float:
    """`FULL_SECONDS`, or longer in large jobs."""
    return FULL_SECONDS * sparseness(world_size)


class BriefReports:
    """What the last report contained, and the form of the next one."""

    def __init__(self, world_size: int = 1) -> None:
        self._full_seconds = full_seconds(world_size)
        self._groups: dict[str, tuple[object, ...]] | None = None
        self._dropped: DropCounts | None = None
        self._newest = -1
        self._until = 0.0
        self._is_first = True

    def forget(self) -> None:
        """The next report is full: the collector asks for it, or the rank is in another run."""
        self._groups = None

    def form(self, report: RankReport, now: float, *, is_witness: bool = True) -> RankReport:
        """The progress report to send: ``report`` itself, or without what the collector knows.

        Args:
            now: monotonic. is_witness: as `Situation.is_witness`: if not, that the rank waits is no news.
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
        """The only news is that the rank has moved, or waits as others do who say so."""
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
        """Left out: a collective of a moment ago that no report has shown in flight, so that none must show its end."""
        return call.stream == "collective" and call.record > self._newest and not call.is_posted


def _is_long(call: ReportedCall) -> bool:
    """It is waited for, and has been in flight for long, or nothing is known of its age."""
    waited = _waited(call)
    return not call.is_posted and (waited is None or waited >= WAIT_SECONDS)


def _waited(call: ReportedCall) -> float | None:
    """Seconds; None: not known."""
    return call.age_s if call.wait_s is None else call.wait_s


def _without_evidence(report: RankReport) -> RankReport:
    """Without what was taken and written because the rank waits; all of it if that shows more than a wait."""
    if report.python_blocked or report.unreached:
        return report
    return replace(
        report, python_blocked=None, site="", doing="", addresses=(), decisions=(), left_loops=(), patterns=(), file=""
    )


def _texts(group: ReportedGroup) -> tuple[object, ...]:
    """What a brief report leaves out of a group. Groups whose members are not known are in each report in full."""
    known = group.ranks or object()
    return group.name, group.description, known, group.backend, group.is_destroyed
