"""How ranks, groups and durations are written for a reader."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.presentation import (
    MAX_RANGES,
    ago_text,
    collective_text,
    count_text,
    duration_text,
    group_text,
    job_title,
    rank_list,
    ranks_text,
    site_text,
)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([5], "rank 5"),
        ([5, 5], "rank 5"),
        ([1, 0], "ranks 0, 1"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        ([0, 2, 4, 6], "ranks 0, 2, 4, 6"),
        (range(5, 70, 8), "ranks 5-69 step 8"),
        ([0, 1, 3, 5, 7, 9, 11], "ranks 0, 1-11 step 2"),
        ([0, 2, 4, 5, 6, 7], "ranks 0, 2, 4-7"),
    ],
)
def test_ranks(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_long_list_of_ranks_ends_with_its_length() -> None:
    primes = [n for n in range(2, 300) if all(n % d for d in range(2, n))]
    text = rank_list(primes)
    assert text.endswith(f", ... ({len(primes)} in all)")
    assert text.count(",") == MAX_RANGES


@given(st.sets(st.integers(0, 40), max_size=12))
def test_every_rank_can_be_read_from_a_short_list(ranks: set[int]) -> None:
    read: list[int] = []
    for part in rank_list(ranks).split(", ") if ranks else []:
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?: step (\d+))?)?", part)
        assert found is not None
        first, last, step = found.groups()
        read += range(int(first), int(last or first) + 1, int(step or 1))
    assert read == sorted(ranks)


def test_counts_have_the_number_of_their_noun() -> None:
    assert [count_text(count, "open incident") for count in (0, 1, 2)] == [
        "0 open incidents",
        "1 open incident",
        "2 open incidents",
    ]


@pytest.mark.parametrize(
    ("job", "service", "title"),
    [
        ("llama", "train.py", "llama"),
        ("ff542033-fd85-4c4e-9181-2a21b30436c2", "train.py", "train.py (ff542033)"),
        ("c2631e88ca9250e8", "train.py", "train.py (c2631e88)"),
        ("c2631e88ca9250e8", None, "c2631e88ca9250e8"),
        ("c2631e88ca9250e8", "", "c2631e88ca9250e8"),
        ("c2631e88ca9250e8", "unknown_service", "c2631e88ca9250e8"),
        ("20261122", "train.py", "20261122"),
    ],
)
def test_a_job_that_its_launcher_has_only_numbered_is_called_by_its_script(
    job: str, service: str | None, title: str
) -> None:
    assert job_title(job, service) == title


def test_a_group_is_written_with_its_description_first() -> None:
    assert group_text("3", "dp") == "dp (3)"
    assert group_text("3", "") == group_text("3", "undefined") == "3"
    assert group_text("tp", "tp") == "tp"


def test_a_collective_and_a_call_site() -> None:
    assert collective_text("all_reduce", 5) == "all_reduce number 5"
    assert collective_text("send", None) == "send"
    assert site_text("a.py:1 f") == "a.py:1 f"
    assert site_text("") == site_text(None) == "location not known"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.46, "4.5 s"),
        (99.4, "99.4 s"),
        (725, "12 min 5 s"),
        (18_720, "5 h 12 min"),
        (273_600, "3 days 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s ago"), (12.4, "12 s ago"), (300, "5 min ago"), (10_800, "3 h ago"), (200_000, "2 days ago")],
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert ago_text(seconds) == text
