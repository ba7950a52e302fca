"""One receiver, text or tenant does not keep the others from being notified."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otel_fr_collector import loading
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.jobs.calls import Interner
from otel_fr_collector.jobs.span_reader import SpanReader
from otel_fr_collector.loading import SettingsError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.json_encoding import from_json
from otel_fr_collector.otlp.signals import LOGS
from otel_fr_collector.outlets.outlet import Outlet

from otel_fr import semconv
from otel_fr.control.v1.control_pb2 import WatchRequest
from tests.support.incident_data import incident_change
from tests.support.otlp_messages import attribute
from tests.support.services import new_service, value
from tests.support.stores import sqlite_store


class Kept(Outlet):
    """An outlet that keeps what is published; ``broken``: it raises instead."""

    def __init__(self, name: str, broken: bool = False) -> None:
        self.name = name
        self.broken = broken
        self.changes: list[IncidentChange] = []
        self.resumed: list[Incident] = []

    def publish(self, change: IncidentChange) -> None:
        if self.broken:
            raise RuntimeError("no")
        self.changes.append(change)

    def resume(self, incidents: Sequence[Incident]) -> None:
        if self.broken:
            raise RuntimeError("no")
        self.resumed.extend(incidents)


ERRORS = "otel_fr_collector_internal_errors_total"


def test_what_one_outlet_raises_reaches_no_other_and_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    first, broken, last = outlets = [Kept("first"), Kept("broken", broken=True), Kept("last")]
    service = new_service(None, *outlets)
    service.outlets.resume([], 0.0)
    changes = [incident_change(number=str(number)) for number in range(3)]
    service._take_changes(changes, 0.0)
    assert first.changes == last.changes == changes
    assert not broken.changes
    assert value(service.metrics, ERRORS, part="publish") == 4
    assert caplog.text.count("broken: incident changes could not be published") == 1


def test_outlets_do_not_depend_on_the_commands_to_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    def dump(*_: object) -> int:
        raise ValueError("cannot be encoded")

    outlet = Kept("only")
    service = new_service(None, outlet)
    monkeypatch.setattr(service.control, "dump", dump)
    changes = [incident_change(number=str(number)) for number in range(2)]
    service._take_changes(changes, 0.0)
    assert outlet.changes == changes
    assert value(service.metrics, ERRORS, part="control") == 2


def test_outlets_and_monitors_do_not_depend_on_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: object) -> None:
        raise ValueError("cannot be encoded")

    outlet, metrics = Kept("only"), Metrics()
    store = sqlite_store(tmp_path, metrics)
    service = new_service(None, outlet, metrics=metrics, store=store)
    commanded: list[str] = []
    monkeypatch.setattr(store, "save", save)
    monkeypatch.setattr(service.control, "dump", lambda _, incident, *__: commanded.append(incident))
    service._take_changes([incident_change()], 0.0)
    assert len(outlet.changes) == len(commanded) == 1
    assert value(service.metrics, ERRORS, part="store") == 1


def test_lists_with_lone_surrogates_in_the_json_of_a_span_are_left_out() -> None:
    """dtypes may come as JSON text, and they are shown in the summary of a mismatch."""
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8)
    values = {
        semconv.GROUP_ID: "g", semconv.OPERATION: "all_reduce", semconv.SEQUENCE_ID: 1,
        semconv.INPUT_DTYPES: json.dumps(["Float\udcff"]),
    }  # fmt: skip
    span.attributes.extend(attribute(key, value) for key, value in values.items())
    call = SpanReader(Interner()).read([span.SerializeToString()], [])[0]
    assert (call[0].signature.operation, call[0].signature.input_dtypes) == ("all_reduce", ())


def test_an_otlp_json_request_with_lone_surrogates_is_read() -> None:
    """As an exporter sends whose language cuts texts between two UTF-16 units."""
    body = json.dumps({"resourceLogs": [{"resource": {"attributes": [
        {"key": "torch.job.id", "value": {"stringValue": "job \ud83d"}}]}}]})  # fmt: skip
    request = ExportLogsServiceRequest.FromString(from_json(LOGS, body.encode()))
    assert request.resource_logs[0].resource.attributes[0].value.string_value == "job ?"


def test_incidents_stored_with_lone_surrogates_are_restored_without(tmp_path: Path) -> None:
    """As collectors before this version have stored them."""
    change = incident_change(summary="dtype Float\udcff")
    store = sqlite_store(tmp_path)
    store.save([change.incident])
    store.close()
    metrics = Metrics()
    service = new_service(metrics=metrics, store=sqlite_store(tmp_path, metrics))
    restored = service.book.known()[0]
    assert restored.finding.summary == restored.data["summary"] == "dtype Float?"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("forward", ["http://host:4318/\udcff"]),
        ("alert_label", ["team=\udcff"]),
        ("link", ["runbook=http://wiki/\udcff"]),
    ],
)
def test_a_setting_that_is_not_utf8_is_refused_where_it_is_shown_to_others(option: str, value: object) -> None:
    with pytest.raises(SettingsError, match="is not UTF-8"):
        loading.load({option: value}, {})


def test_a_path_in_the_settings_may_be_any_bytes() -> None:
    assert loading.load({"incidents": "/tmp/\udcff"}, {}).incidents == Path("/tmp/\udcff")


def test_monitors_are_not_told_of_an_incident_that_another_collector_continues(tmp_path: Path) -> None:
    service = new_service(None, store=sqlite_store(tmp_path))
    change = incident_change()
    run = change.incident.run
    service._publish([change], 0.0)
    request = WatchRequest(job_id=run.job, run_id=run.run, rank=0)
    told = []
    for _ in range(2):
        with service.control.watch(request) as monitor:
            told.append(monitor._commands.qsize())
        assert service._persistence is not None
        service._persistence._forget(run)
    assert told == [1, 0]
