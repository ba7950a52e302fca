"""What the commands for a terminal say if there is no collector at the given address."""

from __future__ import annotations

import pytest

from otel_fr.cli import main
from otel_fr.console.client import UNREACHABLE


@pytest.mark.parametrize("url", ["collector:8080", "http://[::1", "http://user:secret@[::1", "http://\u2100"])
def test_what_is_no_url_is_said_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--collector", url]) == UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" is not an http:// or https:// URL")
    assert "secret" not in line
