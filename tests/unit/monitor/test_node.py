"""What the monitors of one machine agree on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from otel_fr.config import Config
from otel_fr.monitor.control.node import KEEP_SECONDS, Node, run_folder
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.ring.layout import ProcessNow


def joined(folder: Path, rank: int, run: str = "run", size: int = 0, pid: int = 0) -> Node:
    node = Node(folder, run, rank, size, pid)
    node.join()
    return node


def test_what_is_to_be_said_once_is_said_by_the_first_that_asks(tmp_path: Path) -> None:
    one, two, other = joined(tmp_path, 0), joined(tmp_path, 1), joined(tmp_path, 0, "another run")
    assert two.is_first("incident 1")
    assert not one.is_first("incident 1")
    assert one.is_first("incident 2")
    assert other.is_first("incident 1")


def test_what_is_said_each_minute_leaves_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is listed each second, for as long as the job runs."""
    nodes = [joined(tmp_path, rank) for rank in range(2)]
    for minute in range(20):
        monkeypatch.setattr(time, "time", lambda minute=minute: 60.0 * minute)
        assert [node.is_first("endpoint", 60.0) for node in nodes] == [True, False]
        nodes.reverse()
    assert len([*run_folder(tmp_path, "run").glob("said-*")]) == 2


def test_the_last_that_leaves_knows_that_it_is_and_who_failed(tmp_path: Path) -> None:
    nodes = [joined(tmp_path, rank, size=3) for rank in range(3)]
    assert nodes[0].others() == [os.getpid()] * 2
    nodes[1].note_failure("/dumps/otel_fr_rank_1", stopped=False)
    nodes[0].note_failure("", stopped=True)
    assert [node.leave() for node in nodes] == [False, False, True]
    assert nodes[2].failures() == {0: ("", True), 1: ("/dumps/otel_fr_rank_1", False)}
    assert nodes[0].others() == []


def test_one_that_fell_silent_leaves_the_last_word_to_the_last_that_did_not(tmp_path: Path) -> None:
    ended, failed = (joined(tmp_path, rank, size=2) for rank in range(2))
    assert not ended.fall_silent(), "the other may fail"
    failed.note_failure("/dumps/otel_fr_rank_1", stopped=False)
    assert failed.fall_silent()
    assert not failed.leave(), "the other still runs"
    assert ended.leave()


def test_of_ranks_that_fail_the_last_has_the_last_word(tmp_path: Path) -> None:
    nodes = [joined(tmp_path, rank, size=3) for rank in range(3)]
    nodes[0].note_failure("", stopped=False)
    assert [node.fall_silent() for node in nodes] == [False, False, True]
    assert nodes[2].failures() == {0: ("", False)}


def test_a_rank_runs_while_its_process_does_whatever_its_monitor_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[int, ProcessNow | None] = {11: ProcessNow("R", 5), 12: ProcessNow("S", 6), 13: ProcessNow("D", 7)}
    monkeypatch.setattr("otel_fr.monitor.control.node.process_start_ns", lambda pid: pid - 6)
    monkeypatch.setattr("otel_fr.monitor.control.node.process_state", states.get)
    nodes = [joined(tmp_path, rank, pid=pid) for rank, pid in ((0, 11), (2, 12), (10, 13))]
    without_pid = joined(tmp_path, 3)
    assert nodes[0].running() == without_pid.running() == [0, 2, 10]
    for own in (nodes[1]._own, nodes[2]._own):
        assert own is not None
        os.close(own)  # killed
    assert nodes[0].running() == [0, 2, 10]
    states |= {12: ProcessNow("T", 6), 13: None}
    assert nodes[0].running() == [0], "one is stopped, one has ended"
    states |= {12: ProcessNow("t", 6), 13: ProcessNow("S", 8)}
    assert nodes[0].running() == [0, 2], "a debugger looks at one, the other's number is another process's now"


def test_a_rank_in_another_container_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = joined(tmp_path, 0, pid=os.getpid())
    monkeypatch.setattr("otel_fr.monitor.control.node.pid_namespace", lambda: "pid:[1]")
    there = joined(tmp_path, 1, pid=os.getpid())
    assert there.running() == [1]
    monkeypatch.undo()
    assert here.running() == [0]


@pytest.mark.parametrize(("present", "lacks"), [(1, True), (2, False)])
def test_a_run_on_several_machines_lacks_a_rank_if_fewer_than_this_machine_s_have_joined(
    tmp_path: Path, present: int, lacks: bool
) -> None:
    left_behind = joined(tmp_path, 0, "run", size=2)
    known = [
        RankIdentity.of({"run_id": run, "session": number, "world_size": 4}, Config(), 1)
        for number, run in enumerate(("run", "next run"))
    ]
    following = [joined(tmp_path, rank, "next run", size=2) for rank in range(present)]
    following[0].note_earlier(known, known[1])
    assert (left_behind.next() is not None) is lacks


def test_a_monitor_that_was_killed_does_not_count(tmp_path: Path) -> None:
    killed, last = joined(tmp_path, 0), joined(tmp_path, 1)
    assert killed._own is not None
    os.close(killed._own)  # as the kernel does
    killed._own = None
    assert last.leave()


def test_a_monitor_waits_a_moment_for_those_that_have_not_begun(tmp_path: Path) -> None:
    alone = joined(tmp_path, 0, size=2)
    alone.note_failure("", stopped=False)
    assert alone.fall_silent(), "the other has not come"
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
