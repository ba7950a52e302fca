"""Ring files left behind do not accumulate in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from otel_fr.monitor.ring_cleanup import KEEP_SECONDS, remove_stale_rings


def test_only_old_files_of_ended_ranks_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        f"rank0-{ended.pid}.ring": False,
        f"rank0-{ended.pid}.ring.1": False,
        f"rank0-{ended.pid}.ring.stacks": False,
        f"rank0-{os.getpid()}.ring": True,
        f"rank1-{ended.pid}.ring.young": True,
        "somebody-elses": True,
    }
    for name in names:
        (tmp_path / name).touch()
    assert remove_stale_rings(tmp_path) == 0, "what is young is kept: a person may want to look at it"
    assert remove_stale_rings(tmp_path, time.time() + KEEP_SECONDS + 60) == 3
    assert {name: (tmp_path / name).exists() for name in names} == names


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert remove_stale_rings(tmp_path / "none") == 0
