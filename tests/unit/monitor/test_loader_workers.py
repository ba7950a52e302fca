"""DataLoader workers of a rank, from a folder in place of /proc, and what is shown of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.monitor.process import loader_workers
from otel_fr.monitor.process.loader_workers import MAX_SHOWN, MAX_TEXT, NAME, texts_of, workers_of

LOOP = "    _worker_loop (torch/utils/data/_utils/worker.py:374)\n    BaseProcess.run (multiprocessing/process.py:108)"
BUSY = f'Thread 7 (idle): "MainThread"\n    D.__getitem__ (train.py:6)\n{LOOP}'


def process(root: Path, pid: int, name: str, *children: int, threads: int = 1) -> None:
    for number in range(threads):
        task = root / str(pid) / "task" / str(pid + number)
        task.mkdir(parents=True)
        (task / "children").write_text("".join(f"{child} " for child in children) if number == threads - 1 else "")
    (root / str(pid) / "comm").write_text(f"{name}\n")


def test_workers_are_found_by_their_name_in_every_thread_s_children_and_behind_a_fork_server(tmp_path: Path) -> None:
    process(tmp_path, 100, "python", 200, 201, 202, threads=2)
    process(tmp_path, 200, NAME)
    process(tmp_path, 201, "python")
    process(tmp_path, 202, "python", 300)
    process(tmp_path, 300, NAME, 400)
    process(tmp_path, 400, NAME)
    assert list(workers_of(100, tmp_path)) == [200, 300]
    assert list(workers_of(999, tmp_path)) == []


def test_idle_workers_are_left_out_and_a_few_of_the_others_shown_without_what_started_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacks = {1: BUSY.replace("D.__getitem__ (train.py:6)", "Queue.get (multiprocessing/queues.py:113)"), 2: ""}
    stacks |= dict.fromkeys(range(3, 9), BUSY)
    stacks[4] = "x" * 2 * MAX_TEXT
    monkeypatch.setattr(loader_workers, "workers_of", lambda pid: iter(stacks))
    shown = texts_of(0, stacks.__getitem__, lambda pid: "sleeping" if pid == 3 else "").split("\n\n")
    assert len(shown) == MAX_SHOWN
    heading, _, *frames = shown[0].splitlines()
    assert heading == "DataLoader worker, process 3, sleeping:"
    assert [frame.split()[0] for frame in frames] == ["D.__getitem__", "_worker_loop"]
    assert len(shown[1]) == MAX_TEXT
