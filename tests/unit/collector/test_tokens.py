"""Lines of a tokens file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
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
