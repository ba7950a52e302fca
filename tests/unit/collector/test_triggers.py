"""When the collector waits for more before it judges a run."""

from __future__ import annotations

import pytest
from otel_fr_collector.incidents.triggers import _was_stopped
from otel_fr_collector.jobs.rank_reports import KeptReport
from otel_fr_collector.jobs.ranks import RankState

from otel_fr.match import Ending


@pytest.mark.parametrize(("by_monitor", "was_stopped"), [(True, True), (False, False)])
def test_a_rank_that_its_monitor_killed_was_stopped(by_monitor: bool, was_stopped: bool) -> None:
    """As for the match engine: its launcher ends the others after it, one by one."""
    report = KeptReport(1, 7, ended_by_monitor=by_monitor)
    assert _was_stopped(RankState(1, report, ending=Ending.KILLED, signal=9)) is was_stopped
