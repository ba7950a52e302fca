"""Reports decoded into typed objects say what the general way reads; what has to be cut or replaced is left to that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from otel_fr_collector.jobs import typed_reports

from otel_fr import rank_report
from otel_fr.rank_report import RankReport
from tests.unit.core.test_rank_report import REPORT_JSON, reports


def as_read(value: Any, like: Any) -> Any:
    """The attributes of a typed object, as the section ``like`` that the general way has read."""
    if not isinstance(like, tuple):
        return value
    if hasattr(like, "_fields"):
        return type(like)(*[as_read(getattr(value, name), getattr(like, name)) for name in like._fields])
    return tuple([as_read(*pair) for pair in zip(value, like, strict=True)])


@given(reports)
def test_every_report_that_a_monitor_builds_is_read_here(report: RankReport) -> None:
    text = rank_report.build(report)
    typed = typed_reports.read(text)
    assert typed is not None
    assert as_read(typed, report) == report


VALUES: list[Any] = [
    None, True, 0, 1, 1.5, -1, 61, 2**70, 1e300, "", "x", "x" * 2_000, "\ud800", [], [[]], [[1]], [None], ["x"],
    ["x" * 65], [[2**70]], [1] * 300, [[1]] * 65, [[1] * 65], {}, {"id": "x"}, {"id": ""}, [{}] * 65,
]  # fmt: skip


@settings(max_examples=100)
@given(st.data())
def test_a_value_out_of_bounds_or_of_another_type_is_read_alike_or_left_to_the_general_way(data: st.DataObject) -> None:
    body: dict[str, Any] = json.loads(REPORT_JSON)
    parts = [body, *body["groups"], *body["failed"], body["last"], body["exit"], body["exception"], body["dropped"]]
    for _ in range(data.draw(st.integers(0, 2))):
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.sampled_from([*sorted(part), "key_of_a_later_release"]))] = data.draw(st.sampled_from(VALUES))
    text = json.dumps(body)
    typed = typed_reports.read(text)
    if typed is not None:
        general = rank_report.parse(text)
        assert as_read(typed, general) == general


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 100_000, REPORT_JSON[:-1], REPORT_JSON.replace('"v":1', '"v":2'), "7" * 5_000]
)
def test_what_is_no_report_is_left_to_the_general_way_which_says_why(text: str) -> None:
    assert typed_reports.read(text) is None
    with pytest.raises(ValueError, match="report"):
        typed_reports.read_report(text)


def test_a_text_that_is_too_long_is_cut_by_the_general_way() -> None:
    text = REPORT_JSON.replace('"reason":"stall"', f'"reason":"{"s" * 2_000}"')
    assert typed_reports.read(text) is None
    assert typed_reports.read_report(text).reason == "s" * 1_024
