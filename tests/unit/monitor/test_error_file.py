"""The file into which torchelastic writes the exception that ends a rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from otel_fr.monitor.process import error_file
from otel_fr.rank_report import ReportedException

STACK = (
    'Traceback (most recent call last):\n  File "/home/user/train.py", line 9, in load\n    raise ValueError("bad")\n'
)


def test_torchelastics_own_form(tmp_path: Path) -> None:
    extra = {"py_callstack": STACK, "timestamp": "1790000000"}
    content = {"message": {"message": "ValueError: bad sample: 4711", "extraInfo": extra}}
    (tmp_path / "error.json").write_text(json.dumps(content))
    expected = ReportedException("ValueError", "bad sample: 4711", STACK, "/home/user/train.py:9 load")
    assert error_file.read(str(tmp_path / "error.json")) == expected


@pytest.mark.parametrize("text", ["", "[]", "{", '{"message": 5}', '{"message": {"message": ""}}', "[" * 100_000])
def test_what_is_no_error_file_is_left_out(text: str) -> None:
    assert error_file.parse(text) is None


def test_a_message_without_a_class(tmp_path: Path) -> None:
    assert error_file.parse('{"message": "no class here: at all"}') == ReportedException("", "no class here: at all")


def test_a_file_that_cannot_be_read_holds_up_nothing(tmp_path: Path) -> None:
    assert error_file.read("") is None
    assert error_file.read(str(tmp_path / "none")) is None
    os.mkfifo(tmp_path / "hangs")
    assert error_file.read(str(tmp_path / "hangs"), wait=0.05) is None
