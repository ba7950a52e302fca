"""The program's own span at each step: which one, and that odd ones cost no step."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import otel_fr
from otel_fr.fault_tolerance import sections
from otel_fr.fault_tolerance.user_span import current_span
from otel_fr.ring import Activity, ActivityReader

TRACER = TracerProvider().get_tracer("the program's")


def steps_of(reader: ActivityReader) -> list[Activity]:
    """Those that have ended, and the current one."""
    step = reader.step()
    return [*reader.ended(0)[0], *([] if step is None else [step])]


def ids(span: Any) -> bytes:
    context = span.get_span_context()
    return bytes(context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big"))


def test_a_step_of_the_program_has_the_span_it_began_in(reader: ActivityReader) -> None:
    with TRACER.start_as_current_span("epoch") as epoch:
        otel_fr.step(7)
    otel_fr.step(8)
    with TRACER.start_as_current_span("step 9") as own:
        otel_fr.step(9)
    found = steps_of(reader)
    assert [(step.step, step.user) for step in found] == [(7, ids(epoch)), (8, None), (9, ids(own))]
    assert {(step.name, step.timeout_ms, step.parent) for step in found} == {("", 0, 0)}


def test_a_step_of_an_optimizer_has_the_span_it_ended_in(reader: ActivityReader) -> None:
    spans = []
    for number in range(3):
        with TRACER.start_as_current_span(f"step {number}") as span:
            sections.count_step()
            spans.append(ids(span))
    # What comes before the first step of an optimizer is none.
    assert [step.user for step in steps_of(reader)] == [*spans[1:], None]


def test_a_section_is_in_a_step_with_a_span_as_in_any(reader: ActivityReader) -> None:
    with TRACER.start_as_current_span("step") as span:
        otel_fr.step(1)
    with otel_fr.section("forward", timeout=30):
        pass
    section, step = steps_of(reader)
    assert (section.name, section.timeout_ms, section.parent, section.user) == ("forward", 30_000, step.number, None)
    assert step.user == ids(span)


@pytest.mark.parametrize(
    "span",
    [
        None,
        SimpleNamespace(is_recording=lambda: False),
        SimpleNamespace(is_recording=lambda: 1 / 0),
        SimpleNamespace(is_recording=lambda: True, get_span_context=lambda: None),
        SimpleNamespace(is_recording=lambda: True, get_span_context=lambda: SimpleNamespace(trace_id=0, span_id=0)),
        SimpleNamespace(is_recording=lambda: True, get_span_context=lambda: SimpleNamespace(trace_id="x", span_id=1)),
        SimpleNamespace(
            is_recording=lambda: True, get_span_context=lambda: SimpleNamespace(trace_id=1 << 200, span_id=1)
        ),
    ],
)
def test_what_is_no_valid_recording_span_costs_no_step(
    reader: ActivityReader, monkeypatch: pytest.MonkeyPatch, span: object
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace(get_current_span=lambda: span))
    otel_fr.step(1)
    assert [(step.step, step.user) for step in steps_of(reader)] == [(1, None)]


def test_a_program_without_the_api_is_not_made_to_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert current_span() is None
    assert "opentelemetry.trace" not in sys.modules
