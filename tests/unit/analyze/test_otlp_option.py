"""``otel-fr analyze --otlp``: what it says of the endpoint, and the protocol it takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_fr.analyze import HEALTHY, UNUSABLE
from otel_fr.cli import main
from otel_fr.otlp_sender import protocol_of
from tests.support.torch_files import entry, write


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a fault, so that nothing is sent."""
    for name in (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        *(f"OTEL_EXPORTER_OTLP_TRACES_{end}" for end in ("PROTOCOL", "ENDPOINT")),
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # the test sets it, and it is removed afterwards
    return write(tmp_path, {rank: [entry(0, "all_reduce", 1)] for rank in range(2)})


@pytest.mark.parametrize(("host", "status"), [("host:4317", HEALTHY), ("host:port", UNUSABLE)])
def test_no_message_shows_the_password(
    host: str, status: int, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(healthy), "--otlp", f"http://me:secret@{host}"]) == status
    said = capsys.readouterr().err
    assert f"http://...@{host}" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("port", "given", "taken"),
    [(4318, "", "http/protobuf"), (4317, "", "grpc"), (4318, "grpc", "grpc"), (4317, "http/protobuf", "http/protobuf")],
)
def test_the_port_decides_on_the_protocol_only_if_no_variable_does(
    port: int, given: str, taken: str, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", given)
    assert main(["analyze", str(healthy), "--otlp", f"http://host:{port}"]) == HEALTHY
    assert protocol_of("traces") == taken
    assert os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"].endswith("/v1/traces") is (taken != "grpc")
