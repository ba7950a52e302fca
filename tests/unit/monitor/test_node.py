"""What the monitors of one machine agree on."""

from __future__ import annotations

import os
from pathlib import Path

from otel_fr.monitor.node import KEEP_SECONDS, Node


def joined(folder: Path, rank: int, run: str = "run", size: int = 0) -> Node:
    node = Node(folder, run, rank, size)
    node.join()
    return node


def test_what_is_to_be_said_once_is_said_by_the_first_that_asks(tmp_path: Path) -> None:
    one, two, other = joined(tmp_path, 0), joined(tmp_path, 1), joined(tmp_path, 0, "another run")
    assert two.is_first("incident 1")
    assert not one.is_first("incident 1")
    assert one.is_first("incident 2")
    assert other.is_first("incident 1")


def test_the_last_that_leaves_knows_that_it_is_and_who_failed(tmp_path: Path) -> None:
    nodes = [joined(tmp_path, rank, size=3) for rank in range(3)]
    assert nodes[0].others() == [os.getpid()] * 2
    nodes[1].note_failure("/dumps/otel_fr_rank_1", stopped=False)
    nodes[0].note_failure("", stopped=True)
    assert [node.leave() for node in nodes] == [False, False, True]
    assert nodes[2].failures() == {0: ("", True), 1: ("/dumps/otel_fr_rank_1", False)}
    assert nodes[0].others() == []


def test_a_monitor_that_was_killed_does_not_count(tmp_path: Path) -> None:
    killed, last = joined(tmp_path, 0), joined(tmp_path, 1)
    assert killed._own is not None
    os.close(killed._own)  # as the kernel does
    killed._own = None
    assert last.leave()


def test_a_monitor_waits_a_moment_for_those_that_have_not_begun(tmp_path: Path) -> None:
    alone = joined(tmp_path, 0, size=2)
    assert alone.leave(), "the other never came"


def test_without_a_folder_each_monitor_speaks_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    node = joined(tmp_path / "file", 0)
    assert node.is_first("incident")
    assert node.is_first("incident")
    node.note_failure("x", stopped=False)
    assert node.failures() == {}
    assert node.leave()


def test_folders_of_old_runs_are_removed_but_not_those_in_use(tmp_path: Path) -> None:
    old, used = joined(tmp_path, 0, "old"), joined(tmp_path, 0, "used")
    old.leave()
    for folder in tmp_path.iterdir():
        os.utime(folder, (0, 0))
    new = joined(tmp_path, 0, "new")
    assert len(list(tmp_path.iterdir())) == 2
    assert used.others() == []
    new.leave()
    new.remove()
    assert len(list(tmp_path.iterdir())) == 1
    assert KEEP_SECONDS > 60
