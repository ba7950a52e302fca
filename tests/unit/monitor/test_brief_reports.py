"""Which progress reports are brief, and what these still tell."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otel_fr.monitor.rules import WAIT_SECONDS
from otel_fr.monitor.telemetry.brief_reports import FULL_SECONDS, BriefReports, full_seconds
from otel_fr.rank_report import (
    DropCounts,
    RankReport,
    ReportedActivity,
    ReportedCall,
    ReportedDecision,
    ReportedException,
    ReportedGroup,
    ReportedLoop,
    ReportedPattern,
    ReportedRoundTrip,
    build,
)

GROUP = ReportedGroup("a1", "0", "default_pg", "0-3", "gloo", 5, 4, 0, 5, 4, is_destroyed=False, idle_s=0.1)
CALL = ReportedCall(
    group="a1", stream="collective", sequence=5, op_id=5, record=42, pair_index=0, operation="all_reduce",
    backend="gloo", input_sizes=((3,),), input_dtypes=("Float",), output_sizes=((3,),), output_dtypes=("Float",),
    input_splits=None, output_splits=None, reduce_op="sum", root=None, peer=None, tag=None, state="scheduled",
    timeout_ms=600_000, age_s=0.1, site="train.py:42 step",
)  # fmt: skip
REPORT = RankReport(
    rank=1, number=1, groups=(GROUP,), in_flight=(), in_flight_more=0, failed=(), idle_s=0.1,
    dropped=DropCounts(0, 0, 0, 0), last=CALL, records_creations=True, running_here="0-3",
)  # fmt: skip


def told(report: RankReport = REPORT) -> BriefReports:
    """The collector has been told this at time 0."""
    reports = BriefReports()
    assert reports.form(report, 0.0) is report
    return reports


def moved(number: int = 2, **values: Any) -> RankReport:
    """A later report: all counts have risen."""
    group = replace(GROUP, enqueued=25, completed=24, calls_enqueued=25, calls_ended=24)
    return replace(REPORT, number=number, groups=(group,), **values)


def test_a_rank_that_moves_tells_its_counts_only() -> None:
    report = told().form(moved(step=7, step_s=0.2), 1.0)
    assert json.loads(build(report)) == {
        "v": 1, "rank": 1, "n": 2, "idle_s": 0.1,
        "groups": [{"id": "a1", "enq": 25, "done": 24, "issued": 25, "ended": 24}],
        "creations": True, "step": 7, "step_s": 0.2, "here": "0-3", "brief": True,
    }  # fmt: skip


def test_a_brief_report_tells_whose_addresses_are_whose_and_which_links_are_slow() -> None:
    trips = (ReportedRoundTrip("10.0.0.2", 0.4),)
    report = told().form(moved(addresses=("10.0.0.1",), round_trips=trips), 1.0)
    assert (report.is_brief, report.addresses, report.round_trips) == (True, ("10.0.0.1",), trips)


def test_the_first_report_is_full_and_so_is_one_after_half_a_minute() -> None:
    reports = told()
    assert reports.form(moved(), 1.0).is_brief
    full = moved(3)
    assert reports.form(full, FULL_SECONDS) is full
    assert reports.form(moved(4), FULL_SECONDS + 1).is_brief
    assert reports.form(moved(5), 2 * FULL_SECONDS - 0.1).is_brief, "from then on every 30 s"


def test_a_collector_that_asks_gets_a_full_report() -> None:
    reports = told()
    reports.forget()
    report = moved()
    assert reports.form(report, 1.0) is report
    assert reports.form(moved(3), 2.0).is_brief


@pytest.mark.parametrize(
    "unusual",
    [
        {"idle_s": 2.0},
        {"idle_s": None},
        {"in_flight": (replace(CALL, record=50, age_s=WAIT_SECONDS),)},
        {"in_flight": (replace(CALL, record=50, age_s=None),)},
        {"in_flight": (replace(CALL, record=50, stream="p2p", age_s=9.0, wait_s=1.0),)},
        {"in_flight_more": 1},
        {"failed": (replace(CALL, state="failed"),)},
        {"dropped": DropCounts(1, 0, 0, 0)},
        {"dropped": DropCounts(0, 0, 0, 1)},
        {"python_blocked": False},
        {"site": "data.py:17 load"},
        {"doing": "sleeping"},
        {"is_exiting": True},
        {"on_hang": "kill"},
        {"exception": ReportedException("ValueError")},
        {"activity": (ReportedActivity("heartbeat", age_s=9.0, limit_s=5.0, is_overdue=True),)},
        {"decisions": (ReportedDecision("skip", "True", 1, 1, 1),)},
        {"groups": (GROUP, replace(GROUP, id="b2"))},
        {"groups": ()},
        {"groups": (replace(GROUP, is_destroyed=True),)},
        {"groups": (replace(GROUP, description="tp"),)},
    ],
    ids=lambda unusual: "-".join(unusual),
)
def test_what_is_unusual_or_new_is_told_in_full(unusual: dict[str, Any]) -> None:
    report = replace(moved(), **unusual)
    assert told().form(report, 1.0) is report


def test_groups_whose_members_are_not_known_are_always_told_in_full() -> None:
    report = replace(REPORT, groups=(replace(GROUP, ranks=""),))
    assert told(report).form(report, 1.0) is report


def test_a_section_that_is_open_and_not_overdue_is_nothing_unusual() -> None:
    report = told().form(moved(activity=(ReportedActivity("section", "load", 1.0, 9.0),)), 1.0)
    assert (report.is_brief, report.activity) == (True, ())


def test_a_posted_receive_is_told_however_old_it_is_and_a_young_collective_is_not() -> None:
    posted = replace(CALL, stream="p2p", operation="recv", record=50, is_posted=True, age_s=99.0)
    report = told().form(moved(in_flight=(posted, replace(CALL, record=51, age_s=0.2))), 1.0)
    assert (report.is_brief, report.in_flight) == (True, (posted,))


def test_a_call_that_was_told_in_flight_is_told_until_it_has_ended() -> None:
    """A collector takes a call that is not listed any more for one that has ended."""
    reports = told(replace(REPORT, in_flight=(CALL,)))
    report = reports.form(moved(in_flight=(CALL, replace(CALL, record=43))), 0.2)
    assert (report.is_brief, report.in_flight) == (True, (CALL,))


KEPT = ReportedPattern("a1", 1, 2, step="a1")
WAITS = moved(
    in_flight=(replace(CALL, record=50, age_s=9.0),),
    idle_s=9.0,
    site="x.py:1 f",
    python_blocked=False,
    patterns=(KEPT,),
)


def test_a_rank_that_is_no_witness_says_only_that_it_waits() -> None:
    left = (ReportedLoop("x.py", 1, 2, "f"),)
    report = told().form(replace(WAITS, doing="sleeping", left_loops=left), 1.0, is_witness=False)
    assert (report.is_brief, report.in_flight, report.unlisted_s) == (True, (), 9.0)
    assert (report.site, report.doing, report.python_blocked) == ("", "", None)
    assert (report.left_loops, report.patterns) == ((), ())
    assert told().form(WAITS, 1.0) is WAITS, "a witness says where"


def test_once_asked_it_lists_its_call_until_that_has_ended() -> None:
    reports = told()
    reports.forget()
    assert reports.form(WAITS, 1.0, is_witness=False) is WAITS
    report = reports.form(WAITS, 2.0, is_witness=False)
    assert (report.is_brief, report.in_flight, report.unlisted_s) == (True, WAITS.in_flight, None)


@pytest.mark.parametrize(
    "unusual",
    [
        {"python_blocked": True},
        {"unreached": ("10.0.0.7:41234",)},
        {"failed": (replace(CALL, state="failed"),)},
        {"is_exiting": True},
        {"activity": (ReportedActivity("heartbeat", age_s=9.0, limit_s=5.0, is_overdue=True),)},
    ],
    ids=lambda unusual: "-".join(unusual),
)
def test_more_than_a_wait_is_told_in_full_by_each_rank(unusual: dict[str, Any]) -> None:
    report = replace(WAITS, **unusual)
    assert told().form(report, 1.0, is_witness=False) is report


def test_full_reports_are_more_seldom_in_the_largest_jobs() -> None:
    assert [full_seconds(size) for size in (1, 16_384, 32_768)] == [FULL_SECONDS, FULL_SECONDS, 2 * FULL_SECONDS]


calls = st.builds(
    lambda record, stream, age, posted: replace(CALL, record=record, stream=stream, age_s=age, is_posted=posted),
    st.integers(0, 40), st.sampled_from(["collective", "p2p", "group", "monitored_barrier"]),
    st.floats(0, 2), st.booleans(),
)  # fmt: skip


@dataclasses.dataclass
class Collector:
    """What one knows of a rank's calls in flight from its reports, by the rule of docs/reference/rank-report.md."""

    open: set[int] = dataclasses.field(default_factory=set)

    def take(self, report: RankReport) -> None:
        self.open = {call.record for call in report.in_flight}


@given(
    st.lists(st.tuples(st.lists(calls, max_size=4, unique_by=lambda call: call.record), st.floats(0, 9)), max_size=20)
)
def test_no_call_that_is_waited_for_is_ever_left_out_or_seems_to_end(
    steps: list[tuple[list[ReportedCall], float]],
) -> None:
    reports, collector, now = BriefReports(), Collector(), 0.0
    for number, (in_flight, pause) in enumerate(steps):
        now += pause
        shown = collector.open
        sent = reports.form(moved(number, in_flight=tuple(in_flight)), now)
        collector.take(sent)
        waited = {call.record for call in in_flight if not call.is_posted and (call.age_s or 0) >= WAIT_SECONDS}
        messages = {call.record for call in in_flight if call.stream != "collective"}
        assert waited | messages <= collector.open
        if sent.is_brief:
            still = {call.record for call in in_flight} & shown
            assert still <= collector.open
