"""Calls that PyTorch's recorder has and the ring has not: they are counted, once each, whatever else the rank calls.

The recorder's entries are made; tests/acceptance/test_both_captures.py has those of a real job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.monitor.recorder_entries import Entry, parse_entries
from otel_fr.monitor.unseen_calls import UnseenCalls
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, RecordState, RingReader, RingWriter, SiteDef
from tests.support.rings import FRAME, float_signature
from tests.support.worker_server import answer, entry


class Rank:
    """A rank on gloo. ``number``: of PyTorch's for its next call; the ring's is ``recorded + 1``."""

    def __init__(self, folder: Path) -> None:
        self.writer = RingWriter.create([folder], "ring", 1000, {})
        self.reader = RingReader.open(self.writer.path)
        self.unseen = UnseenCalls(self.reader)
        self.entries: list[dict[str, Any]] = []
        self.begin("1" * 16)

    def begin(self, id_: str) -> None:
        """Make the group, named "0", anew."""
        self.group = self.writer.add_group(GroupDef(id_, "0", "default_pg", (0, 1), "gloo", 0))
        self.number = self.recorded = 0

    def call(self, operation: str = "all_reduce", *, direct: bool = False, numbers: int = 1, **fields: Any) -> None:
        """A call; ``direct``: on the backend. ``numbers``: how many PyTorch takes for it, with an entry each."""
        at = time.monotonic_ns()
        if not direct:
            what = float_signature(operation, backend="gloo", sizes=((3,),) * numbers)
            signature = self.writer.define_signature(what, what)
            site = self.writer.define_site("p", SiteDef((FRAME,)))
            of_call = (self.recorded + 1, 0, self.recorded + 1, 0, 600_000, at)
            generation = self.writer.generation
            ticket = self.writer.append(self.group, signature, site, 0, generation, KIND_COLLECTIVE, 0, *of_call)
            self.writer.complete(ticket, self.group, self.recorded + 1, RecordState.COMPLETED, at)
            self.recorded += numbers
        for _ in range(numbers):
            self.number += 1
            given = {"profiling_name": f"gloo:{operation}", "retired": True, "record_id": len(self.entries), **fields}
            self.entries.append(entry(self.number, **given))

    def look(self) -> list[Entry]:
        asked = time.monotonic_ns()
        offset = time.time_ns() - asked
        return self.unseen.note(parse_entries(answer(self.entries)), asked, offset)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    rank.look()
    yield rank
    rank.reader.close()
    rank.writer.close()


def test_a_call_on_a_backend_is_found_told_once_and_ends(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    rank.call()
    rank.call("broadcast", direct=True, retired=False)
    with caplog.at_level(logging.WARNING, "otel_fr.monitor"):
        rank.look()
        assert rank.unseen.take() == []
        rank.entries[-1]["retired"] = True
        rank.look()
        rank.look()
    (item,) = rank.unseen.take()
    assert (item.record.signature.operation, item.record.state) == ("broadcast", RecordState.COMPLETED)
    assert rank.unseen.take() == []
    assert rank.unseen.count == 1
    assert len(caplog.records) == 1
    assert "process group default_pg are made past PyTorch's operators" in caplog.text


def test_entries_of_later_calls_have_the_rings_numbers(rank: Rank) -> None:
    rank.call()
    rank.call(direct=True)
    rank.look()
    rank.call()
    rank.call()
    assert [one.number for one in rank.look()] == [1, 2, 3]
    assert rank.unseen.count == 1


def test_what_the_recorder_has_overwritten_is_still_counted(rank: Rank) -> None:
    for _ in range(3):
        rank.call(direct=True)
    rank.look()
    del rank.entries[:2]
    rank.call()
    assert [one.number for one in rank.look()] == [1]
    del rank.entries[:1]
    rank.call(direct=True)
    rank.call()
    assert rank.look()[0].number == 1
    rank.look()
    assert rank.unseen.count == 4


def test_a_group_whose_first_call_is_on_the_backend(rank: Rank) -> None:
    rank.call(direct=True)
    rank.look()
    rank.call()
    assert [one.number for one in rank.look()] == [1]
    assert rank.unseen.count == 1


def test_a_call_of_several_entries_is_one_that_the_ring_has(rank: Rank) -> None:
    rank.call("reduce_scatter", numbers=3)
    rank.look()
    rank.call()
    rank.look()
    assert rank.unseen.count == 0


def test_entries_of_a_group_that_is_gone_are_not_of_the_new_one(rank: Rank) -> None:
    for _ in range(5):
        rank.call()
    rank.writer.remove_group(rank.group)
    rank.begin("2" * 16)
    rank.look()
    rank.call()
    rank.look()
    assert rank.unseen.count == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_as_many_are_found_as_there_were_wherever_the_monitor_looked(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[bool, bool]]
) -> None:
    """Each step: is the call on the backend, and does the monitor look after it?"""
    rank = Rank(tmp_path_factory.mktemp("rank"))
    try:
        rank.look()
        for direct, looks in program:
            rank.call(direct=direct)
            if looks:
                rank.look()
        rank.look()
        rank.look()
        assert rank.unseen.count == sum(direct for direct, _ in program)
        assert len(rank.unseen.take()) == rank.unseen.count
        assert len(rank.look()) == sum(not direct for direct, _ in program)
    finally:
        rank.reader.close()
        rank.writer.close()
