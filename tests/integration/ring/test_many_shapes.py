"""A ring whose job uses a new shape in each of very many calls."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from otel_fr.ring import RingWriter
from tests.support.ring_model import GROUP, Program, read_all


@pytest.mark.long
def test_memory_stays_bounded_with_200_000_shapes(tmp_path: Path) -> None:
    program = Program(10**9, 1)
    writer = RingWriter.create([tmp_path], "ring", 500, {"rank": 0})
    group = writer.add_group(GROUP)
    size = writer.path.stat().st_size
    peaks: list[int] = []
    cached = 0
    number = 0
    for _ in range(2):
        # The tracer is slow, so it watches two stretches, each longer than a generation lasts; the rest runs freely.
        gc.collect()
        tracemalloc.start()
        for _ in range(8_000):
            program.issue(writer, group, number)
            number += 1
            cached = max(cached, len(writer.signatures) + len(writer.sites))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        for _ in range(92_000):
            program.issue(writer, group, number)
            number += 1
    assert number == 200_000
    assert writer.path.stat().st_size == size
    assert cached < 8_000
    assert peaks[1] < peaks[0] * 1.2
    assert max(peaks) < 8_000_000
    records, reader = read_all(writer.path)
    assert [record.record_id for record in records] == list(range(199_500, 200_000))
    for record in records:
        program.check(record)
    assert reader.torn == 0
