"""The first thing a new user runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.commands import BIN
from tests.support.processes import processes_with
from tests.support.terminal import terminal
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


@pytest.mark.long
def test_the_demo_explains_the_hung_job_within_the_promised_time(tmp_path: Path) -> None:
    command = [str(BIN / "otel-fr"), "demo", "--dir", str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=torchrun.base_environment(), cwd=tmp_path
    )
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert "missing_rank" in text
    assert re.search(r"rank 2 \(.+\) .* all_reduce number 7", text), (
        "two all_reduces a step: number 7 is the first of step 3"
    )
    assert "ranks 0, 1, 3" in text.replace("ranks 0-1, 3", "ranks 0, 1, 3"), "who waits"
    assert "default_pg" in text
    assert "train.py:18 fetch_shard" in text, "the culprit's line"
    assert "in fetch_shard" in text, "its stack"
    assert "train.py:24 average_gradients" in text, "the waiting ranks' line"
    for rank in range(4):
        assert (tmp_path / "out" / "flight-recorder" / f"otel_fr_rank_{rank}").exists()
        assert str(tmp_path / "out" / "job-files" / f"otel_fr_rank_{rank}") in text, "where the files are"
    live = next(line.strip() for line in text.splitlines() if line.startswith("  rank 2"))
    (files,) = [line.strip() for line in text.splitlines() if line.startswith("    missing_rank: ")]
    said, _, since = live.rpartition(" since ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC", since)
    assert files.startswith(f"missing_rank: {said} for "), "the files tell the same, word for word"
    assert "otel-fr demo --jaeger localhost" in text


@pytest.mark.long
def test_at_a_terminal_the_job_hangs_on_and_the_page_shows_it_until_ctrl_c(tmp_path: Path) -> None:
    """A newcomer's view at a terminal: the page's address, and an end without leftovers."""
    command = [str(BIN / "otel-fr"), "demo", "--dir", str(tmp_path / "out")]
    with terminal(command, columns=200, env=torchrun.base_environment()) as demo:
        assert demo.shows("Ctrl-C ends the demo"), demo.text()
        found = re.search(r"live at (http://\S+)/#/incidents/(\w+)", demo.text())
        assert found is not None, demo.text()
        with urllib.request.urlopen(f"{found[1]}/api/v1/incidents/{found[2]}", timeout=30) as answer:
            assert json.load(answer)["state"] == "firing"
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.ended() == 0, demo.text()
        text = demo.text()
    assert "Traceback" not in text
    assert wait_for(lambda: not processes_with(str(tmp_path))), "something of it is left"


def test_the_demo_says_what_it_needs_when_torch_is_not_there(tmp_path: Path) -> None:
    program = (
        "import shutil, sys; shutil.which = lambda *a, **k: None;"
        "from otel_fr.cli import main; sys.exit(main(['demo', '--dir', sys.argv[1]]))"
    )
    command = [str(BIN / "python"), "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=torchrun.base_environment())
    assert done.returncode == 2
    assert "torchrun was not found" in done.stderr
