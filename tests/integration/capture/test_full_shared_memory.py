"""Ranks on a machine with full shared memory. They record in the temporary folder or not at all, and log it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank
from tests.support.mounts import tmpfs

PROGRAM = """
session_module.start_monitor = no_monitor
import otel_fr.ring.files
otel_fr.ring.files.SHARED_MEMORY = os.environ["FULL"]
del os.environ["OTEL_FR_RING_DIR"]
start()
dist.all_reduce(torch.ones(2))
session = hook._state.session
print(session and session._writer.path, session and ring().head)
"""

pytestmark = pytest.mark.usefixtures("each_engine", "warm")


def test_the_ring_is_in_the_temporary_folder(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "size=256k") as full:
        path, head = single_rank.succeed(tmp_path, PROGRAM, FULL=str(full), TMPDIR=str(tmp_path)).split()
        assert not [left for left in full.rglob("*") if left.is_file()]
    assert Path(path).parent.parent == tmp_path
    assert head == "1"


def test_a_rank_without_room_for_its_ring_runs_and_says_so_once(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "size=256k") as full:
        done = single_rank.run(tmp_path, PROGRAM, FULL=str(full), TMPDIR=str(full))
    assert (done.returncode, done.stdout.split()) == (0, ["None", "None"]), done.stderr
    assert done.stderr.count("does not record this rank") == 1
    assert done.stderr.count(f"{full}: No space left on device") == 1
