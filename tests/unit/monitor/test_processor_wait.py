"""How long a thread has waited for a processor, from what the kernel counts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.monitor.process.processor_wait import EVERY_SECONDS, STILL_SECONDS, ProcessorWait

PID = 4711
MOVED = 1_000_000_000
"""When the rank moved last, ns."""


class Thread:
    """Files of one thread as /proc has them, and looks at it. Times are seconds after the rank has moved."""

    def __init__(self, root: Path) -> None:
        self._folder = root / str(PID) / "task" / str(PID)
        self._folder.mkdir(parents=True)
        self.wait = ProcessorWait(PID, root)

    def look(self, at: float, ran: float, waited: float, count: int, state: str = "R", moved: int = MOVED) -> float:
        (self._folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} {count}\n")
        (self._folder / "stat").write_text(f"{PID} (a b) R) {state} 1 {PID}\n")
        self.wait.step(moved + int(at * 1e9), moved)
        return self.wait.seconds


@pytest.fixture
def thread(tmp_path: Path) -> Thread:
    return Thread(tmp_path)


def test_what_the_kernel_has_counted_since_the_first_look_counts(thread: Thread) -> None:
    assert thread.look(0.3, 5.0, 7.0, 10) == 0.0
    assert thread.look(1.3, 5.1, 7.9, 20) == 0.9
    assert thread.look(2.3, 5.1, 7.9, 30, state="S") == 0.9


def test_a_wait_that_is_not_over_counts(thread: Thread) -> None:
    thread.look(0.3, 5.0, 7.0, 10)
    assert thread.look(1.3, 5.0, 7.0, 10) == 1.0
    assert thread.look(2.3, 5.0, 7.0, 10) == 2.0
    assert thread.look(3.3, 5.1, 9.8, 11) == 2.8  # it is over, and counted by the kernel


def test_a_thread_that_runs_without_a_pause_does_not_wait(thread: Thread) -> None:
    """With nohz_full its time is counted late."""
    thread.look(0.3, 5.0, 7.0, 10)
    assert thread.look(0.8, 5.0, 7.0, 10) == 0.5
    assert thread.look(1.3, 6.0, 7.0, 10) == 0.0
    assert thread.look(2.3, 7.0, 7.0, 10) == 0.0


@pytest.mark.parametrize("state", ["S", "D", "T"])
def test_a_thread_that_sleeps_or_is_stopped_does_not_wait(thread: Thread, state: str) -> None:
    thread.look(0.3, 5.0, 7.0, 10, state=state)
    assert thread.look(1.3, 5.0, 7.0, 10, state=state) == 0.0
    assert thread.look(2.3, 5.0, 7.0, 10) == 0.0  # it may have woken just now


def test_no_more_than_the_time_that_was_looked_at_counts(thread: Thread) -> None:
    thread.look(0.3, 5.0, 7.0, 10)
    assert thread.look(1.3, 5.0, 12.0, 11) == 1.0  # the wait had begun before


def test_it_begins_anew_when_the_rank_has_moved(thread: Thread) -> None:
    thread.look(0.3, 5.0, 7.0, 10)
    assert thread.look(1.3, 5.0, 7.9, 20) == 0.9
    assert thread.look(0.0, 5.0, 8.2, 30, moved=2 * MOVED) == 0.0
    assert thread.look(0.3, 5.0, 8.5, 30, moved=2 * MOVED) == 0.0
    assert thread.look(0.8, 5.0, 8.6, 30, moved=2 * MOVED) == 0.5


def test_a_rank_that_moves_is_not_looked_at_and_one_that_does_not_seldom(thread: Thread) -> None:
    thread.look(STILL_SECONDS / 2, 5.0, 7.0, 10)
    thread.look(STILL_SECONDS, 5.0, 7.5, 10)
    assert thread.look(STILL_SECONDS + EVERY_SECONDS / 2, 5.0, 7.6, 11) == 0.0
    assert thread.look(STILL_SECONDS + EVERY_SECONDS, 5.0, 7.7, 11) == 0.2


def test_a_kernel_that_counts_nothing_says_nothing(tmp_path: Path) -> None:
    wait = ProcessorWait(PID, tmp_path)
    for seconds in range(1, 4):
        wait.step(MOVED + seconds * 10**9, MOVED)
    assert wait.seconds == 0.0
