"""Commands that wait to be carried out: in order, and bounded in number and in bytes."""

from __future__ import annotations

from otel_fr.control.v1.control_pb2 import Command, Dump
from otel_fr.monitor.control.pace import MAX_WAITING, MAX_WAITING_BYTES, Inbox


def dump(number: int) -> Command:
    return Command(dump=Dump(reason=str(number)))


def test_commands_beyond_the_most_that_may_wait_are_lost_and_counted() -> None:
    inbox = Inbox()
    for number in range(MAX_WAITING + 3):
        inbox.put(dump(number), 10)
    assert inbox.lost == 3
    assert [inbox.take() for _ in range(MAX_WAITING)] == [dump(number) for number in range(MAX_WAITING)]
    assert inbox.take() is None


def test_commands_for_another_run_are_dropped() -> None:
    inbox = Inbox()
    for number in range(4):
        inbox.put(dump(number), 10, f"run {number % 2}")
    assert [inbox.take("run 1") for _ in range(3)] == [dump(1), dump(3), None]


def test_large_commands_that_wait_are_bounded_in_bytes() -> None:
    inbox = Inbox()
    for number, size in enumerate((MAX_WAITING_BYTES, 1)):
        inbox.put(dump(number), size)
    assert inbox.lost == 1
    assert inbox.take() == dump(0)
    inbox.put(dump(2), MAX_WAITING_BYTES)
    assert (inbox.take(), inbox.lost) == (dump(2), 1)
