"""What happens at the limits: the ring wraps, the definitions flip, groups pass 256; memory stays where it is."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from otel_fr.ring import (
    COUNTERS,
    GroupDef,
    ProcessState,
    RecordState,
    RingReader,
    RingWriter,
    SiteDef,
    process_start_ns,
)
from tests.support.ring_model import BIG_SITE, GROUP, Program, read_all, signature_of


def make(tmp_path: Path, capacity: int) -> tuple[RingWriter, int]:
    writer = RingWriter.create([tmp_path], "ring", capacity, {"rank": 0})
    return writer, writer.add_group(GROUP)


def test_a_record_is_counted_as_lost_once(tmp_path: Path) -> None:
    program = Program(4)
    writer, group = make(tmp_path, 10)
    reader = RingReader.open(writer.path)
    for number in range(10):
        program.issue(writer, group, number)
    assert len(list(reader.records())) == 10
    for number in range(10, 30):
        program.issue(writer, group, number)
    assert [record.record_id for record in reader.records(10)] == list(range(20, 30))
    assert reader.lost == 10
    list(reader.records(10))
    list(reader.records())
    assert reader.lost == 10
    of_none, first = None, (RecordState.IN_FLIGHT, None, None)
    assert [reader.ended(number) for number in (19, 20, 30, -1)] == [of_none, first, of_none, of_none]


def test_a_flip_keeps_what_it_can_explain_and_says_what_it_gave_up(tmp_path: Path) -> None:
    program = Program(10**9, BIG_SITE)
    writer, group = make(tmp_path, 100)
    first_of: dict[int, int] = {}
    for number in range(30):
        program.issue(writer, group, number)
        first_of.setdefault(writer.generation, number)
    assert writer.generation >= 4
    assert len(writer.signatures) < 30 > len(writer.sites)
    records, reader = read_all(writer.path)
    kept = first_of[writer.generation - 1]
    assert [record.record_id for record in records] == list(range(kept, 30))
    for record in records:
        program.check(record)
    assert reader.lost == kept
    assert reader.generation == writer.generation
    assert reader.counters["flips"] == writer.generation - 1
    assert [row.group for row in reader.groups()] == [GROUP]


def groups_without_a_row(path: Path) -> int:
    """As docs/reference/ring-format.md has it."""
    return int.from_bytes(path.read_bytes()[1056:1064], "little")


def test_more_groups_than_rows(tmp_path: Path) -> None:
    """300 live groups: 256 have progress, all have readable records, also after flips; a freed row is used again."""
    writer, _ = make(tmp_path, 2000)
    groups = [replace(GROUP, id=f"{number:016x}", ranks=tuple(range(number % 9 + 1))) for number in range(1, 301)]
    indexes = [writer.add_group(group) for group in groups]
    for round_ in range(4):
        for index in indexes:
            Program(10**9, 4000).issue(writer, index, round_ * 300 + index - 1)
    assert writer.generation >= 3
    with RingReader.open(writer.path) as reader:
        assert groups_without_a_row(writer.path) == 45
        records = list(reader.records())
        assert len(records) > 60
        assert [record.record_id for record in records] == list(range(records[0].record_id, 1200))
        assert reader.torn == 0
        for record in records:
            assert record.group == groups[record.record_id % 300]
        assert [row.group for row in reader.groups()] == [GROUP, *groups[:255]]
        writer.remove_group(indexes[299])
        assert groups_without_a_row(writer.path) == 44
        writer.remove_group(indexes[0])
        writer.remove_group(indexes[0])
        new = replace(GROUP, id="f" * 16)
        writer.add_group(new)
        assert groups_without_a_row(writer.path) == 44
        row = next(row for row in reader.groups() if row.group == new)
        assert (row.issued, row.enqueued, row.last_issue_ns) == (0, 0, 0)


def test_groups_without_end_keep_the_file_and_their_records(tmp_path: Path) -> None:
    """A job that makes and destroys a large group again and again; a late completion lands on no other group."""
    writer, first = make(tmp_path, 50)
    program = Program(3)
    size = writer.path.stat().st_size
    for number in range(1500):
        ranks = tuple(sorted({(number * step * step) % 4001 for step in range(150)}))
        group = GroupDef(f"{number:016x}", f"pg{number}", "x" * 100, ranks, "gloo", number)
        index = writer.add_group(group)
        program.issue(writer, index, number)
        writer.remove_group(index)
        writer.complete(number + 1, index, number, RecordState.COMPLETED, number + 1)
    assert writer.generation > 2
    assert writer.path.stat().st_size == size
    records, reader = read_all(writer.path)
    assert len(records) == 50
    for record in records:
        assert record.group.id == f"{record.record_id:016x}"
        assert record.group.ranks[0] == 0
        assert len(record.group.ranks) > 50
        assert record.ended_ns == record.record_id + 1
    (row,) = reader.groups()
    assert (row.group, row.issued, row.ended) == (GROUP, 0, 0)
    with pytest.raises(KeyError):
        program.issue(writer, index, 1500)
    program.issue(writer, first, 1500)


def test_256_groups_of_irregular_ranks_leave_room_for_calls(tmp_path: Path) -> None:
    """Their definitions would fill the half several times over: their records still read, some without ranks."""
    writer = RingWriter.create([tmp_path], "ring", 20, {})
    groups = []
    for number in range(256):
        ranks = tuple(sorted({(number + 1) * step * step % 100_003 for step in range(1500)}))
        groups.append(GroupDef(f"{number:016x}", f"pg{number}", "", ranks, "gloo", number))
    indexes = [writer.add_group(group) for group in groups]
    program = Program(10**9, BIG_SITE)
    for number in range(40):
        program.issue(writer, indexes[number], number)
    records, reader = read_all(writer.path)
    assert records[-1].record_id == 39
    for record in records:
        group = groups[record.record_id]
        assert record.group.id == group.id
        assert record.group == group or (record.group.truncated and record.group.ranks == ())
    assert [row.group.id for row in reader.groups()] == [group.id for group in groups]
    assert reader.counters["truncated_definitions"] > 0


def test_a_large_ring_remembers_no_more_keys_than_a_small_one_could_hold(tmp_path: Path) -> None:
    """70,000 call sites fit one generation of this ring, but their keys are the training process's memory."""
    writer, group = make(tmp_path, 100_000)
    sig = writer.define_signature("s", signature_of(1, 10))
    refs = {}
    for number in range(70_000):
        refs[number] = writer.define_site(number, SiteDef((("a.py", number, "f"),)))
        assert len(writer.sites) <= 65_536
    assert writer.generation == 1
    for number in (0, 65_535, 65_536, 69_999):
        writer.append(group, sig, refs[number], 0, 1, 0, 0, 1, 0, 1, 0, 0, 1)
    records, _ = read_all(writer.path)
    assert [record.site.text for record in records] == [f"a.py:{number} f" for number in (0, 65_535, 65_536, 69_999)]


def test_appends_and_completions_keep_no_memory(tmp_path: Path) -> None:
    program = Program(5)
    writer, group = make(tmp_path, 100)
    for number in range(200):
        program.issue(writer, group, number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(200, 5_000):
            program.issue(writer, group, number)
            program.complete(writer, group, number)
        # Any object kept for each of the 4,800 would take 16 bytes at least.
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()


def test_status(tmp_path: Path) -> None:
    writer, _ = make(tmp_path, 10)
    before = time.time_ns() - time.monotonic_ns()
    with RingReader.open(writer.path) as reader:
        assert (reader.pid, reader.pid_start_ns) == (os.getpid(), process_start_ns(os.getpid()))
        assert abs(reader.wall_offset_ns - before) < 10**9
        assert (reader.state, reader.monitor_pid, reader.exception) == (ProcessState.RUNNING, 0, None)
        assert reader.counters == dict.fromkeys(COUNTERS, 0)
        writer.set_state(ProcessState.EXITING)
        writer.set_monitor_pid(4711)
        writer.count("hook_errors")
        writer.count("dropped", 3)
        writer.set_meta({"rank": 7, "host": "node-1"})
        writer.set_exception({"type": "ValueError", "message": "bad sample \u2603"})
        writer.set_exception({"type": "SystemExit"})
        assert (reader.state, reader.monitor_pid) == (ProcessState.EXITING, 4711)
        assert (reader.counters["hook_errors"], reader.counters["dropped"]) == (1, 3)
        assert reader.meta == {"rank": 7, "host": "node-1"}
        assert reader.exception == {"type": "ValueError", "message": "bad sample \u2603"}
        with pytest.raises(KeyError):
            writer.count("no such counter")


def test_the_first_exceptions_of_threads_stay_and_the_newest_follows_them(tmp_path: Path) -> None:
    writer, _ = make(tmp_path, 10)
    with RingReader.open(writer.path) as reader:
        assert reader.thread_exceptions == []
        for number in range(1, 8):
            writer.add_thread_exception({"type": "OSError", "stack": "x" * 9000, "thread": f"loader-{number}"})
            kept = [*range(1, min(number, 3) + 1), *([number] if number > 3 else [])]
            assert [found["thread"] for found in reader.thread_exceptions] == [f"loader-{n}" for n in kept]
        assert reader.exception is None
        writer.set_exception({"type": "ValueError", "thread": "MainThread"})
        assert reader.exception == {"type": "ValueError", "thread": "MainThread"}
        assert len(reader.thread_exceptions) == 4


def test_texts_too_long_for_their_place_are_shortened_and_say_so(tmp_path: Path) -> None:
    writer, _ = make(tmp_path, 10)
    stack = "".join(f'  File "/job/layer{number}.py", line {number}, in forward\n' for number in range(1000))
    writer.set_exception({"type": "RecursionError", "message": "deep", "stack": stack})
    writer.set_meta({"rank": 1, "argv": ["--long"] * 2000})
    with RingReader.open(writer.path) as reader:
        found = reader.exception
        assert found is not None
        assert (found["type"], found["message"], found["truncated"]) == ("RecursionError", "deep", True)
        assert str(found["stack"]).startswith('  File "/job/layer0.py"')
        assert str(found["stack"]).endswith('"/job/layer999.py", line 999, in forward\n')
        assert len(str(found["stack"])) > 1500
        assert reader.meta == {"rank": 1, "truncated": True}


def test_the_start_of_a_process_that_is_gone_is_not_known() -> None:
    assert process_start_ns(2**22 + 1) is None
