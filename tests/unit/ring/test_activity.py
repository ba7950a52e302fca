"""The activity section: what is written is read, and what is damaged or half written is not."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

from otel_fr.ring import NO_ROW, ActivityReader, ActivityWriter, RingReader, RingWriter
from otel_fr.ring import activity_layout as layout
from otel_fr.ring.activity_reader import LATE_ROWS
from otel_fr.ring.activity_writer import Body


def make(folder: Path) -> tuple[ActivityWriter, ActivityReader]:
    writer = RingWriter.create([folder], "ring", 10, {})
    reader = RingReader.open(writer.path).activity
    assert reader is not None
    return writer.activity, reader


def body(writer: ActivityWriter, number: int, name: str = "load", **changes: int) -> Body:
    fields = {"kind": layout.KIND_SECTION, "timeout": 0, "parent": 0, "root": number, "step": -1, **changes}
    return (
        number,
        fields["kind"],
        writer.reference(name),
        11,
        12,
        1000 + number,
        0,
        fields["timeout"],
        fields["parent"],
        fields["root"],
        fields["step"],
    )


def test_an_unused_section_says_so(tmp_path: Path) -> None:
    _, reader = make(tmp_path)
    assert (reader.step(), reader.open_sections(), reader.ended(0)) == (None, [], ([], 0, 0))
    assert reader.beats().last_ns == 0


def test_what_is_open_and_what_has_ended_is_read(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    first = writer.open(body(writer, 1, "épochs ✓", timeout=2500))
    writer.open(body(writer, 2, "load", parent=1, root=1, step=-7))
    found = reader.open_sections()
    assert [(item.name, item.timeout_ms, item.parent, item.root, item.step) for item in found] == [
        ("épochs ✓", 2500, 0, 1, -1),
        ("load", 0, 1, 1, -7),
    ]
    assert (found[0].thread, found[0].native_id, found[0].began_ns) == (11, 12, 1001)
    writer.end(first, body(writer, 1, "épochs ✓"), 9000, layout.FLAG_FAILED)
    assert [item.number for item in reader.open_sections()] == [2]
    ended, position, lost = reader.ended(0)
    assert [(item.number, item.name, item.ended_ns, item.is_failed) for item in ended] == [(1, "épochs ✓", 9000, True)]
    assert (position, lost) == (1, 0)
    assert reader.ended(position) == ([], 1, 0)
    assert reader.beats().last_end_ns == 9000


def test_steps_heartbeats_and_limits_are_read(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    for number in (5, 6):
        writer.set_step(body(writer, number, "", kind=layout.KIND_STEP, step=number * 10))
        found = reader.step()
        assert found is not None
        assert (found.is_step, found.step, found.number) == (True, number * 10, number)
    writer.heartbeat(123)
    writer.heartbeat(456)
    writer.set_limits(1000, 2000, 77, 3000)
    beats = reader.beats()
    assert (beats.count, beats.last_ns) == (2, 456)
    assert (beats.limit_ms, beats.first_limit_ms, beats.since_ns, beats.outside_limit_ms) == (1000, 2000, 77, 3000)
    writer.stop_watching()
    assert reader.beats().last_ns == reader.beats().limit_ms == reader.beats().last_end_ns == 0
    writer.misuse()
    assert reader.misuses == 1


def test_more_open_sections_than_rows_are_counted_and_still_logged(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    rows = [writer.open(body(writer, number)) for number in range(1, layout.OPEN_ROWS + 4)]
    assert rows[-3:] == [NO_ROW] * 3
    assert len(reader.open_sections()) == layout.OPEN_ROWS
    assert reader.untracked == 3
    for number, row in enumerate(rows, 1):
        writer.end(row, body(writer, number), 5000)
    assert reader.open_sections() == []
    assert len(reader.ended(0)[0]) == len(rows)
    assert writer.open(body(writer, 999)) != NO_ROW


def test_a_row_that_another_section_has_now_is_not_freed(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    row = writer.open(body(writer, 1))
    writer.end(row, body(writer, 1), 5000)
    assert writer.open(body(writer, 2)) == row
    writer.free(row, 1)
    assert [item.number for item in reader.open_sections()] == [2]


def test_what_was_overwritten_before_it_was_read_is_counted(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    total = layout.ENDED_ROWS + 100
    for number in range(1, total + 1):
        writer.log(body(writer, number), 5000)
    ended, position, lost = reader.ended(0)
    assert [item.number for item in ended] == list(range(101, total + 1))
    assert (position, lost) == (total, 100)


def test_a_row_that_is_being_written_is_waited_for_and_one_never_written_is_lost(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    for number in range(1, 4):
        writer.log(body(writer, number), 5000)
    words, at = writer._words, writer._ended_at // 8 + 2 * layout.ROW_SIZE // 8
    words[at] = 0  # a thread was stopped while it wrote the second row
    ended, position, lost = reader.ended(0)
    assert ([item.number for item in ended], position, lost) == ([1], 1, 0)
    for number in range(4, 4 + LATE_ROWS):
        writer.log(body(writer, number), 5000)
    ended, _, lost = reader.ended(position)
    assert ended[0].number == 3
    assert lost == 1


def test_names_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    long = "données-" * 40
    refs = {writer.reference(f"name {number}") for number in range(3000)}
    assert refs == set(range(layout.NAMES + 1))
    assert len(writer.names) == layout.NAMES
    writer.open(body(writer, 1, "name 5"))
    writer.open(body(writer, 2, "name 2999"))
    assert [item.name for item in reader.open_sections()] == ["name 5", layout.OTHER]
    other, reader = make(tmp_path)
    for number, name in enumerate([long, "", "\udcff", "a\x00b"], 1):
        other.open(body(other, number, name))
    found = [item.name for item in reader.open_sections()]
    assert found[1:] == ["", "\\udcff", "a\x00b"]
    assert long.startswith(found[0])
    assert layout.MAX_NAME - 1 <= len(found[0].encode()) <= layout.MAX_NAME


def test_damage_never_raises_and_never_hangs(tmp_path: Path) -> None:
    writer, reader = make(tmp_path)
    for number in range(1, 40):
        row = writer.open(body(writer, number, f"name {number}"))
        if number % 2:
            writer.end(row, body(writer, number, f"name {number}"), 5000)
    writer.set_step(body(writer, 50, "", kind=layout.KIND_STEP))
    start = writer._first * 8
    numbers = random.Random(7)
    for _ in range(300):
        at = start + 8 + numbers.randrange(layout.ACTIVITY_SIZE - 16)
        writer._map[at : at + 8] = numbers.randbytes(8)
        reader._names.clear()
        reader.open_sections()
        reader.step()
        reader.beats()
        _, position, _ = reader.ended(0)
        reader.ended(position)


def test_the_page_is_enough_to_read_it(tmp_path: Path) -> None:
    ring = RingWriter.create([tmp_path], "ring", 10, {})
    writer = ring.activity
    row = writer.open(body(writer, 1, "load", timeout=30_000, step=7))
    writer.end(row, body(writer, 1, "load", timeout=30_000, step=7), 2000)
    writer.open(body(writer, 2, "save", parent=1, root=1))
    writer.set_step(body(writer, 3, "", kind=2 | 1 << 10, step=8))
    writer.heartbeat(555)
    writer.misuse()
    data = ring.path.read_bytes()
    start = struct.unpack_from("<Q", data, 40)[0] + 16384 + 4 * 4096
    assert start + 137_472 + 73_792 == struct.unpack_from("<Q", data, 48)[0]
    assert struct.unpack_from("<12Q", data, start) == (1, 1, 555, 0, 0, 0, 0, 1, 3, 1, 0, 2000)
    assert struct.unpack_from("<12Qq", data, start + 96)[0:3] == (3, 3, 2 | 1 << 10)
    assert struct.unpack_from("<qQ", data, start + 96 + 88) == (8, 3)
    assert struct.unpack_from("<11Qq", data, start + 256) == (2, 2, 1, 2, 11, 12, 1002, 0, 0, 1, 1, -1)
    ended = struct.unpack_from("<11Qq", data, start + 256 + 64 * 96 + 96)
    assert ended == (1, 1, 1, 1, 11, 12, 1001, 2000, 30_000, 0, 1, 7)
    word = struct.unpack_from("<Q", data, start + 256 + (64 + 1024) * 96 + 128)[0]
    assert (word >> 32) - 1 == 4
    assert data[start + 256 + (64 + 1024) * 96 + 136 :][:4] == b"save"
    assert word & 0xFFFFFFFF == zlib.crc32(b"save")
