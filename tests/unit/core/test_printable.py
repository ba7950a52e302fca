"""Nothing from a job reaches a terminal as a command."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from otel_fr.printable import one_line, printable, printable_data, shortened

hostile = st.text(st.characters() | st.sampled_from("\x1b\x9b\x07\r\b\u202e\u200b"))


@given(hostile)
def test_no_control_and_no_invisible_character_is_left(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs") for char in shown if char not in "\n\t")
    assert [a for a, b in zip(text, shown, strict=True) if a != b and a.isprintable()] == []


@given(st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" \n\t")))
def test_ordinary_text_in_any_script_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text(), st.integers(5, 40))
def test_a_long_text_keeps_its_beginning_and_end(text: str, most: int) -> None:
    short = shortened(text, most)
    if len(text) <= most:
        assert short == text
        return
    half = (most - 5) // 2
    assert len(short) == most
    assert short.startswith(text[:half])
    assert short.endswith(text[len(text) - half :])


def test_data_is_cleaned_all_through() -> None:
    data = {"a\x1b": ["\x1b[2J", 1, None, {"b": "ok\n"}]}
    assert printable_data(data) == {"a\ufffd": ["\ufffd[2J", 1, None, {"b": "ok\n"}]}


@given(hostile)
def test_a_name_stays_in_one_line(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1
    assert shown.replace(" ", "") == printable(text).replace("\n", "").replace("\t", "").replace(" ", "")
