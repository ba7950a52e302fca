"""However a rank ends, torchrun sees of it what it sees without otel-fr."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.engines import EACH_ENGINE
from tests.support.engines import settings as engine_settings
from tests.support.long_tests import all_but

pytestmark = torchrun.needed

ENDINGS = {
    "exit": ("destroyed", 3),
    "raises": ("destroyed", 1),
    "os_exit": ("alive", 4),
    "sigterm": ("alive", -15),
    "thread": ("alive", 6),
}
"""What becomes of the groups before (torch alone may abort where they are left to the interpreter's exit), and the exit
code that torchrun without otel-fr says of the rank that ended first."""


@pytest.mark.parametrize("engine", EACH_ENGINE)
@pytest.mark.parametrize("how", all_but(("raises",), ENDINGS))
def test_torchrun_sees_the_exit_code_of_the_program(how: str, engine: str, tmp_path: Path) -> None:
    groups, code = ENDINGS[how]
    env = {"OTEL_FR_ENABLED": "1", "OTEL_FR_RING_DIR": str(tmp_path), **engine_settings(engine)}
    job = torchrun.run(tmp_path / "job", "exit_codes.py", how, groups, nproc=2, env=env, program=torchrun.FRESH)
    first = re.search(r"Root Cause.*?exitcode\s*: (-?\d+)", job.output, re.DOTALL)
    assert job.returncode == 1
    assert first is not None
    assert int(first[1]) == code, job.output
