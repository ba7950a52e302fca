"""Tokens files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from otel_fr_collector.network import tokens as module
from otel_fr_collector.network.tokens import Tokens, parse_tokens

from tests.support.tokens import WRITER


@pytest.mark.parametrize(
    "line",
    ["short write *", f"{WRITER} admin *", f"{WRITER} write", f"{WRITER} write a b"],
)
def test_a_token_line_that_cannot_be_used_is_reported_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="line 2") as caught:
        parse_tokens(f"# first\n{line}\n")
    assert line.split()[0] not in str(caught.value)
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(ValueError, match="line 1"):
        Tokens(path)


def test_a_file_that_stays_unusable_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again each second."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    path = tmp_path / "tokens"
    path.write_text(f"{WRITER} write *\n")
    tokens = Tokens(path)
    path.unlink()
    for _ in range(3):
        assert tokens.find(f"Bearer {WRITER}") is not None
    path.write_text("nonsense\n")
    for _ in range(3):
        tokens.end_revoked()
    assert [record.message.count("keeping the old ones") for record in caplog.records] == [1, 1]
    path.write_text("another-0123456789 write *\n")
    assert tokens.find(f"Bearer {WRITER}") is None
    assert tokens.version == 1
