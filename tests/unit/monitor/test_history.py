"""What a rank's newest calls show together is read again once there is something new."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_fr.dumps.step_calls import MAX_RECORDS
from otel_fr.fault_tolerance import decisions, open_sections, sections
from otel_fr.monitor.nccl.device_calls import DeviceCalls
from otel_fr.monitor.ring.tail import Tail
from otel_fr.monitor.telemetry.history import History
from otel_fr.rank_report import ReportedPattern
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, GroupDef, RecordState, RingReader, RingWriter, SiteDef
from tests.support.rings import float_signature

WORLD = GroupDef("a" * 16, "0", "default_pg", (0, 1), "gloo", 0)


class Ring:
    """A ring of rank 0, read as its monitor does."""

    def __init__(self, writer: RingWriter, reader: RingReader) -> None:
        self._writer = writer
        self._group = writer.add_group(WORLD)
        self._site = writer.define_site("t", SiteDef((("train.py", 1, "main"),)))
        self._thread = writer.define_thread(threading.get_ident(), "M")
        self._count = 0
        self._tail = Tail(reader)
        self._history = History(reader, self._tail, DeviceCalls())

    def call(self, operation: str = "all_reduce", *, ends: bool = True) -> int:
        self._count += 1
        kind = KIND_COLLECTIVE if operation == "all_reduce" else KIND_P2P
        peer = None if kind == KIND_COLLECTIVE else 1
        of = self._writer.define_signature(operation, float_signature(operation, peer=peer))
        ticket = self._writer.append(
            self._group, of, self._site, self._thread, self._writer.generation, kind, 0, self._count, self._count,
            self._count, 0, 0, time.monotonic_ns(),
        )  # fmt: skip
        if ends:
            self.end(ticket)
        return ticket

    def end(self, ticket: int) -> None:
        self._writer.complete(ticket, self._group, 0, RecordState.COMPLETED, time.monotonic_ns())

    def steps(self) -> list[tuple[int | None, int]]:
        """(first, last) of the counted ones."""
        found = self._reported()["decisions"]
        return [(item.step, item.last - 1) for item in found if item.name.startswith("calls")]

    @property
    def patterns(self) -> Sequence[ReportedPattern]:
        found: Sequence[ReportedPattern] = self._reported()["patterns"]
        return found

    def _reported(self) -> dict[str, Any]:
        self._tail.poll()
        return self._history.reported(0, in_full=True)


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    monkeypatch.setattr(sections, "_state", open_sections.State())  # its steps are not those of other tests
    writer = RingWriter.create([tmp_path], "ring", 8192, {})
    sections.attach(writer.activity)
    decisions.attach(writer.decisions)
    with RingReader.open(writer.path) as reader:
        yield Ring(writer, reader)
    sections.detach()
    decisions.detach()


def test_steps_are_counted_again_when_one_has_ended(ring: Ring) -> None:
    assert ring.steps() == []
    for number in range(5):
        sections.step(number)
        ring.call()
    assert ring.steps() == [(0, 3)]
    sections.step(5)
    assert ring.steps() == [(0, 4)]


def test_patterns_are_looked_for_again_when_a_call_was_made_or_has_ended(ring: Ring) -> None:
    for _ in range(4):
        ring.call()
        ring.call("send")
    assert not ring.patterns
    last = ring.call(ends=False)
    kept = [ReportedPattern(WORLD.id, 0, 1, step=WORLD.id)]
    assert list(ring.patterns) == kept
    assert ring.patterns is ring.patterns
    ring.end(last)
    assert not ring.patterns
    ring.call(ends=False)
    assert list(ring.patterns) == [ReportedPattern(WORLD.id, 0, 1)]


def test_of_a_long_history_the_newest_calls_are_read(ring: Ring) -> None:
    for name in ("all_reduce", "send") * 4:
        ring.call(name)
    for _ in range(MAX_RECORDS - 1):
        ring.call("recv")
    ring.call(ends=False)
    assert not ring.patterns
