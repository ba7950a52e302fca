"""The garbage collector looks at what is new often, and at everything that is kept seldom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from otel_fr_collector.garbage import ALL_SECONDS, BUSY_SECONDS, GarbageCollection


class Node:
    """In a reference cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.disable()
    yield
    gc.enable()
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_new_garbage_goes_at_the_next_look() -> None:
    garbage = GarbageCollection(100.0)
    gone = weakref.ref(Node())
    assert gone() is not None, "it is in a cycle"
    garbage.step(110.0)
    assert gone() is None


def test_what_was_looked_at_is_looked_at_again_after_some_minutes_only() -> None:
    garbage = GarbageCollection(100.0)
    node = Node()
    gone = weakref.ref(node)
    garbage.step(110.0)
    del node
    for _ in range(3):
        gc.collect()
        garbage.step(100.0 + ALL_SECONDS - 1.0)
    assert gone() is not None
    garbage.step(100.0 + ALL_SECONDS)
    assert gone() is None


def test_a_verdict_that_is_being_reached_is_held_up_once_in_a_while_only() -> None:
    garbage = GarbageCollection(100.0)
    gone = weakref.ref(Node())
    garbage.step(100.0 + BUSY_SECONDS - 1.0, is_busy=True)
    assert gone() is not None
    garbage.step(100.0 + BUSY_SECONDS, is_busy=True)
    assert gone() is None
