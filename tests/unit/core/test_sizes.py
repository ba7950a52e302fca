"""Sizes as users write and read them."""

from __future__ import annotations

import pytest

from otel_fr.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64MiB", 64 << 20),
        ("1.5 GB", 1_500_000_000),
        ("10kb", 10_000),
        ("2TiB", 2 << 40),
        ("5 Gi", 5 << 30),
        ("3m", 3_000_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "9" * 400, "MiB", "-1", "1XB", "0.1B", "1iB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_sizes_as_text() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 20, 3 << 41)] == [
        "0 bytes", "1023 bytes", "1.5 KiB", "5.0 MiB", "6.0 TiB",
    ]  # fmt: skip
