"""Folders with the files of ranks that were real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.analyze import load as analyze
from otel_fr.ring import RecordState
from tests.support.paths import ROOT
from tests.support.rings import RankRing, signature
from tests.support.waiting import PATIENCE

STEP = signature("all_reduce", reduce_op="sum")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from otel_fr.ring import RecordState
from tests.support.rings import RankRing, signature
import socket
from otel_fr.ring import pid_namespace
space = sys.argv[3] if len(sys.argv) > 3 else pid_namespace()
ring = RankRing(Path(sys.argv[2]), 1, 2, host=socket.gethostname(), pid_namespace=space)
ring.call(signature("all_reduce", reduce_op="sum"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_ring_of_a_killed_rank_says_that_it_is_gone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(tmp_path)], timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    ring = RankRing(tmp_path, 0, 2)
    ring.call(STEP)
    ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=20)
    report = analyze(tmp_path)
    assert [(f.category.value, f.culprit_ranks) for f in report.findings] == [("rank_dead", (1,))]


@pytest.mark.parametrize("space", ["pid:[1]", ""])
def test_a_ring_of_another_container_does_not_say_that_its_rank_is_gone(tmp_path: Path, space: str) -> None:
    """The container has this host's name, but its own pids. A process that is missing here shows nothing."""
    command = [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path), space]
    assert subprocess.run(command, timeout=PATIENCE).returncode == -signal.SIGKILL
    ring = RankRing(tmp_path, 0, 2)
    ring.call(STEP)
    ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=20)
    report = analyze(tmp_path)
    assert [f.culprit_ranks for f in report.findings] == [(1,)]
    assert [f.category.value for f in report.findings] != ["rank_dead"]
