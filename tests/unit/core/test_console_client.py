"""What the commands for a terminal say if there is no collector at the given address."""

from __future__ import annotations

import io

import pytest
import urllib3

from otel_fr.cli import main
from otel_fr.console.client import UNREACHABLE, Client, CollectorError


@pytest.mark.parametrize(
    "url", ["collector:8080", "http://[::1", "http://user:secret@[::1", "http://\u2100", "http://user:secret/1@h"]
)
def test_what_is_no_url_is_said_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--collector", url]) == UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" is not an http:// or https:// URL")
    assert "secret" not in line


def test_an_answer_that_breaks_off_is_a_broken_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a proxy that ends while it refuses the live stream: otel-fr incidents --follow asks again."""
    half = urllib3.HTTPResponse(
        io.BytesIO(b"half"), {"Content-Length": "500"}, 502, preload_content=False, enforce_content_length=True
    )
    monkeypatch.setattr(urllib3.PoolManager, "request", lambda *_, **__: half)
    with pytest.raises(CollectorError, match="cannot reach a collector"):
        next(Client("http://proxy").changes())
