"""What the Python engine keeps of a Work, where other threads have made the call."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture.waits import Waits
from otel_fr.ring import RecordState


class Followed:
    """Works of a torch of its own, and the ends that are recorded for them."""

    def __init__(self) -> None:
        class Work:
            def wait(self) -> bool:
                return True

        self.made = Work
        self.ends: list[tuple[int, int]] = []
        self.waits = Waits(SimpleNamespace(Work=Work), self._end, lambda ticket, now: None)

    def _end(self, ticket: int, group_index: int, sequence_id: int, state: int, now: int) -> None:
        self.ends.append((ticket, state))

    def call(self, ticket: int = 1) -> Any:
        self.waits.let_go()
        work = self.made()
        self.waits.follow(work, ticket, 0, 0)
        return work


@pytest.fixture
def followed() -> Followed:
    return Followed()


def in_thread(action: Any) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_a_work_that_a_thread_drops_ends_with_the_thread(followed: Followed) -> None:
    in_thread(followed.call)
    gc.collect()
    assert followed.ends == [(1, RecordState.UNKNOWN)]


def test_a_work_outlives_its_thread_where_the_program_keeps_it(followed: Followed) -> None:
    kept: list[Any] = []
    in_thread(lambda: kept.append(followed.call()))
    assert followed.ends == []
    kept[0].wait()
    assert followed.ends == [(1, RecordState.COMPLETED)]


def test_a_work_that_another_thread_has_waited_for_is_not_kept(followed: Followed) -> None:
    def wait(works: list[Any]) -> None:
        works.pop().wait()

    works = [followed.call()]
    kept = weakref.ref(works[0])
    in_thread(lambda: wait(works))
    gc.collect()
    assert kept() is None
    assert followed.ends == [(1, RecordState.COMPLETED)]


def test_a_wait_for_an_earlier_work_does_not_drop_the_last_one(followed: Followed) -> None:
    """Another thread may wait while the last Work has not reached its caller yet."""
    first = followed.call(1)
    last = weakref.ref(followed.call(2))
    in_thread(first.wait)
    assert followed.ends == [(1, RecordState.COMPLETED)]
    assert last() is not None
    followed.waits.let_go()
    gc.collect()
    assert followed.ends[1:] == [(2, RecordState.UNKNOWN)]


def test_no_thread_keeps_a_work_once_recording_has_ended(followed: Followed) -> None:
    kept = weakref.ref(followed.call())
    in_thread(followed.waits.close)
    gc.collect()
    assert kept() is None
    assert followed.ends == []
