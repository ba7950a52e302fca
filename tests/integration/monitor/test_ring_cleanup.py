"""Abandoned ring files do not accumulate in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_fr.monitor.ring.cleanup import KEEP_SECONDS, keep_ring, remove_stale_rings
from otel_fr.ring import ProcessState, RingWriter, pid_namespace


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


@pytest.mark.parametrize(
    ("state", "space", "is_removed"),
    [
        (ProcessState.CLEAN, pid_namespace(), True),
        (ProcessState.EXITING, pid_namespace(), False),
        (ProcessState.RUNNING, pid_namespace(), False),
        (ProcessState.CLEAN, "pid:[1]", False),  # of another container on the same machine
    ],
)
def test_the_ring_of_a_rank_that_ended_cleanly_is_removed_at_once(
    tmp_path: Path, state: ProcessState, space: str, is_removed: bool
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    writer = RingWriter.create([tmp_path], f"rank0-{ended.pid}.ring", 10, {"pid_namespace": space})
    writer.set_monitor_pid(ended.pid)
    writer.set_state(state)
    stacks = writer.path.with_name(writer.path.name + ".stacks")
    stacks.touch()
    assert remove_stale_rings(writer.path.parent) == int(is_removed)
    assert [writer.path.exists(), stacks.exists()] == [not is_removed] * 2


def test_the_ring_that_a_monitor_still_reads_is_kept(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    writer = RingWriter.create([tmp_path], f"rank0-{ended.pid}.ring", 10, {"pid_namespace": pid_namespace()})
    writer.set_monitor_pid(os.getpid())
    writer.set_state(ProcessState.CLEAN)
    assert remove_stale_rings(writer.path.parent) == 0
    assert writer.path.exists()


def test_old_files_are_kept_while_their_rank_has_a_monitor(tmp_path: Path) -> None:
    """The rank may be in another container, and runs longer than files are kept."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ring = tmp_path / f"rank0-{ended.pid}.ring"
    for path in (ring, ring.with_suffix(".ring.stacks"), ring.with_suffix(".ring.recorder")):
        path.touch()
    keep_ring(ring)
    assert remove_stale_rings(tmp_path, time.time() + KEEP_SECONDS + 60) == 0


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert remove_stale_rings(tmp_path / "none") == 0
