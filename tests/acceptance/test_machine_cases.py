"""Each case of `make machines`: real jobs on hosts of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.machine_cases import CASES, is_right, observe, row
from tests.support import torchrun

pytestmark = [*torchrun.needed, pytest.mark.long]


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_true(name: str, tmp_path: Path) -> None:
    found = observe(CASES[name], tmp_path)
    assert is_right(CASES[name], found), row(name, CASES[name], found)
