"""The end of an overdue rank: which signals it is sent, and when it is left alone."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM
from typing import cast

from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.process.termination import FILE_SECONDS, Termination


class FakeProcess:
    """A process that keeps the signals it was sent."""

    def __init__(self) -> None:
        self.is_alive = True
        self.can_be_reached = True
        self.signals: list[int] = []

    def alive(self) -> bool:
        return self.is_alive

    def send_signal(self, number: int) -> bool:
        if self.can_be_reached and number:
            self.signals.append(number)
        return self.can_be_reached


class Driven:
    def __init__(self) -> None:
        self.process = FakeProcess()
        self.termination = Termination(cast("RankProcess", self.process), 10.0)
        self.announced = 0

    def step(self, now: float, *, is_overdue: bool = True, is_writing: bool = False) -> list[int]:
        self.termination.step(now, is_overdue=is_overdue, is_writing=is_writing, announce=self._announce)
        return self.process.signals

    def _announce(self) -> None:
        assert self.process.signals == []
        self.announced += 1


def test_a_rank_that_is_not_wanted_to_end_is_sent_nothing() -> None:
    driven = Driven()
    assert driven.step(100) == []


def test_sigterm_comes_first_and_sigkill_after_the_grace() -> None:
    driven = Driven()
    driven.termination.want(100)
    assert driven.step(100.1) == [SIGTERM]
    assert driven.announced == 1
    assert driven.step(110.0) == [SIGTERM]
    assert driven.step(110.2) == [SIGTERM, SIGKILL]
    driven.termination.want(111)
    assert driven.step(200) == [SIGTERM, SIGKILL]
    assert driven.announced == 1


def test_it_waits_for_the_file_but_not_for_ever() -> None:
    driven = Driven()
    driven.termination.want(100)
    assert driven.step(101, is_writing=True) == []
    assert driven.step(100 + FILE_SECONDS, is_writing=True) == [SIGTERM]


def test_a_rank_that_goes_on_is_left_alone_and_judged_anew() -> None:
    driven = Driven()
    driven.termination.want(100)
    assert driven.step(101, is_writing=True) == []
    assert driven.step(102, is_overdue=False) == []
    assert driven.step(103) == []
    driven.termination.want(104)
    assert driven.step(104.1) == [SIGTERM]


def test_a_rank_that_ended_by_itself_is_left_alone() -> None:
    driven = Driven()
    driven.termination.want(100)
    driven.process.is_alive = False
    assert driven.step(101) == []
    assert driven.announced == 0


def test_a_process_that_cannot_be_reached_safely_is_sent_nothing() -> None:
    driven = Driven()
    driven.process.can_be_reached = False
    driven.termination.want(100)
    assert driven.step(101) == []
    assert driven.step(200) == []
    assert driven.announced == 0
