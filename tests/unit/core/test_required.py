"""With OTEL_FR_TEST_REQUIRE=1, a test that skips fails, unless what it needs cannot be installed."""

from __future__ import annotations

import pytest

from tests.support import required


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        (("test_x.py", 3, "Skipped: PostgreSQL's server is not installed"), True),
        (("test_x.py", 3, "Skipped: could not import 'mcp'"), True),
        (("test_x.py", 3, "Skipped: no Jaeger here (neither JAEGER_BIN nor jaeger on PATH)"), False),
        (("test_x.py", 3, "Skipped: no GPU: torch 2.13.0+cpu finds no GPU"), False),
    ],
)
def test_which_skips_fail(monkeypatch: pytest.MonkeyPatch, reason: object, fails: bool) -> None:
    monkeypatch.setattr(required, "REQUIRED", True)
    assert bool(required.failure(reason)) is fails
    monkeypatch.setattr(required, "REQUIRED", False)
    assert required.failure(reason) == ""


def test_only_packages_that_could_not_be_installed_are_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(required, "REQUIRED", True)
    monkeypatch.setattr(required, "MISSING", ["chromium"])
    assert required.failure("chromium is not here (Debian: apt-get install chromium)") == ""
    assert required.failure("promtool is not here") != ""
