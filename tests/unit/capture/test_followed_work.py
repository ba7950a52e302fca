"""What stands for a Work without a future has every method of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_fr.capture.native import store

torch = pytest.importorskip("torch")

OURS = (store.FOLDER / "followed_work.hpp").read_text()


def test_every_virtual_method_of_a_work_is_passed_on() -> None:
    """One that is left out would answer for a call that it knows nothing of."""
    header = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d" / "Work.hpp"
    declaration = header.read_text().partition("class TORCH_API Work :")[2].partition("\n};")[0]
    methods = re.findall(r"virtual [^;(]*?(\w+)\(", declaration)
    assert len(methods) >= 13
    body = OURS.partition("class FollowedWork")[2]
    assert [name for name in methods if not re.search(rf"\b{name}\(", body.partition("private:")[0])] == []


def test_the_known_versions_include_the_running_one() -> None:
    known = re.search(r"kKnownMajor = (\d+), kKnownMinor = (\d+)", OURS)
    assert known
    assert tuple(map(int, torch.__version__.split(".")[:2])) <= (int(known[1]), int(known[2]))
