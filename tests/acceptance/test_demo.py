"""The first thing a new user runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import torchrun
from tests.support.commands import BIN
from tests.support.waiting import PATIENCE

pytestmark = torchrun.needed


def test_the_demo_explains_the_hung_job_within_the_promised_time(tmp_path: Path) -> None:
    command = [str(BIN / "otel-fr"), "demo", "--dir", str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=torchrun.base_environment(), cwd=tmp_path
    )
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert "missing_rank" in text
    assert "rank 2 did not join all_reduce number 7" in text, "two all_reduces a step: number 7 is the first of step 3"
    assert "ranks 0, 1, 3" in text.replace("ranks 0-1, 3", "ranks 0, 1, 3"), "who waits"
    assert "default_pg" in text
    assert "train.py:18 fetch_shard" in text, "the culprit's line"
    assert "in fetch_shard" in text, "its stack"
    assert "train.py:24 average_gradients" in text, "the waiting ranks' line"
    for rank in range(4):
        file = tmp_path / "out" / "flight-recorder" / f"otel_fr_rank_{rank}"
        assert file.exists()
        assert str(file) in text, "where the files are"


def test_the_demo_says_what_it_needs_when_torch_is_not_there(tmp_path: Path) -> None:
    program = (
        "import shutil, sys; shutil.which = lambda *a, **k: None;"
        "from otel_fr.cli import main; sys.exit(main(['demo', '--dir', sys.argv[1]]))"
    )
    command = [str(BIN / "python"), "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=torchrun.base_environment())
    assert done.returncode == 2
    assert "torchrun was not found" in done.stderr
