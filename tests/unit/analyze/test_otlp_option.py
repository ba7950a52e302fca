"""``otel-fr analyze --otlp``: what it says of the endpoint, and the protocol it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.analyze import HEALTHY, UNUSABLE
from otel_fr.cli import main
from tests.support.torch_files import entry, write


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a fault, so that nothing is sent."""
    for name in (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        *(f"OTEL_EXPORTER_OTLP_TRACES_{end}" for end in ("PROTOCOL", "ENDPOINT")),
    ):
        monkeypatch.setenv(name, "")
    return write(tmp_path, {rank: [entry(0, "all_reduce", 1)] for rank in range(2)})


@pytest.mark.parametrize(("host", "status"), [("host:4317", HEALTHY), ("host:port", UNUSABLE)])
def test_no_message_shows_the_password(
    host: str, status: int, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(healthy), "--otlp", f"http://me:secret@{host}"]) == status
    said = capsys.readouterr().err
    assert f"http://...@{host}" in said
    assert "secret" not in said
