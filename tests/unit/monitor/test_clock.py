"""Calls whose end only PyTorch's recorder shows, by the wall clock, when that clock is set."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from otel_fr.ring import RecordState
from tests.support.worker_server import begun, ended
from tests.unit.monitor.test_device_calls import Rank


def test_a_call_in_flight_stays_in_flight_when_the_clock_is_set(tmp_path: Path) -> None:
    with closing(Rank(tmp_path)) as rank:
        rank.issue()
        rank.poll()
        call = begun(1)
        for hours in (0, 1, -1):
            assert rank.show(call, seconds_ago=3_600 * hours) == []
            assert [found["record"] for found in rank.in_flight()] == [0]
        (item,) = rank.show(ended(1, time_created_ns=call["time_created_ns"]))
        assert item.record.state is RecordState.COMPLETED
