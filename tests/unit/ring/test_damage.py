"""Damaged and hostile files: what is damaged is not believed, the rest is, and nothing crashes or hangs."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.ring import GroupDef, ProcessState, Record, RecordState, RingFormatError, RingReader, RingWriter
from otel_fr.ring.layout import HEADER, HEADER_CRC
from tests.support.ring_model import GROUP, Program, corrupt, read_all, read_u64

PROGRAM = Program(shapes=3)
RECORDS = 12
# Where the header says what lies where (docs/reference/ring-format.md).
HALF, STATUS, PROGRESS, DEFINITIONS, SLOTS = 32, 40, 48, 64, 72
CAPACITY = 8


@dataclass(repr=False)
class Original:
    """The bytes of a whole ring; half a megabyte has no place in a report."""

    data: bytes


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A ring that has wrapped."""
    writer = RingWriter.create([tmp_path_factory.mktemp("damage")], "ring", CAPACITY, {"rank": 1})
    group = writer.add_group(GROUP)
    for number in range(RECORDS):
        PROGRAM.issue(writer, group, number)
        PROGRAM.complete(writer, group, number)
    writer.set_exception({"type": "ValueError"})
    data = writer.path.read_bytes()
    writer.close()
    return Original(data)


@pytest.fixture(scope="module")
def ring(original: Original, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies") / "ring"
    path.write_bytes(original.data)
    return path


@pytest.fixture(autouse=True)
def _restored(ring: Path, original: Original) -> None:
    ring.write_bytes(original.data)


def use_everything(path: Path) -> list[Record]:
    """All that a reader offers; every answer has the shape it promises."""
    with RingReader.open(path) as reader:
        records = list(reader.records())
        for record in records:
            assert isinstance(record.state, RecordState)
            assert isinstance(record.group, GroupDef)
            assert reader.ended(record.record_id) is not None
        assert len(records) <= reader.capacity
        for row in reader.groups():
            assert isinstance(row.group, GroupDef)
        assert isinstance(reader.meta, dict)
        assert reader.exception is None or isinstance(reader.exception, dict)
        assert isinstance(reader.state, ProcessState)
        assert all(value >= 0 for value in reader.counters.values())
        assert min(reader.head, reader.generation, reader.monitor_pid, reader.torn) >= 0
        list(reader.records(2**70))
        list(reader.records(-1))
        return records


@given(slot=st.integers(0, CAPACITY), byte=st.integers(0, 75), flip=st.integers(1, 255))
def test_a_slot_with_a_wrong_byte_is_not_believed(
    original: Original, ring: Path, slot: int, byte: int, flip: int
) -> None:
    ring.write_bytes(original.data)
    start = read_u64(ring, SLOTS)
    ticket = read_u64(ring, start + slot * 96)
    offset = start + slot * 96 + byte
    corrupt(ring, offset, bytes([original.data[offset] ^ flip]))
    records, reader = read_all(ring)
    for record in records:
        PROGRAM.check(record)
    expected = set(range(RECORDS - CAPACITY, RECORDS)) - {ticket - 1}
    assert {record.record_id for record in records} == expected
    assert reader.torn == CAPACITY - len(expected)


@given(place=st.integers(8, 400), flip=st.integers(1, 255))
def test_a_definition_with_a_wrong_byte_is_not_believed(original: Original, ring: Path, place: int, flip: int) -> None:
    ring.write_bytes(original.data)
    offset = read_u64(ring, DEFINITIONS) + read_u64(ring, HALF) + place
    corrupt(ring, offset, bytes([original.data[offset] ^ flip]))
    records, reader = read_all(ring)
    for record in records:
        PROGRAM.check(record)
    assert reader.torn == CAPACITY - len(records)


def test_a_record_whose_definition_is_damaged_is_left_out_and_the_others_stay(ring: Path, original: Original) -> None:
    # Call sites are "/job/train.py:N"; every third record has N = 1.
    place = original.data.index(b"/job/train.py\x01")
    corrupt(ring, place + 5, b"X")
    records, reader = read_all(ring)
    assert [record.record_id for record in records] == [number for number in range(4, 12) if number % 3 != 1]
    assert reader.torn == 3


def test_a_torn_row_of_progress_leaves_the_group_out(ring: Path) -> None:
    row = read_u64(ring, PROGRESS)
    corrupt(ring, row, struct.pack("<Q", 1 << 32 | 999))
    with RingReader.open(ring) as reader:
        assert reader.groups() == []
        assert len(list(reader.records())) == CAPACITY


def test_one_damaged_copy_of_meta_leaves_the_other(ring: Path) -> None:
    writer = RingWriter.create([ring.parent], "meta", 4, {"step": 1})
    writer.set_meta({"step": 2})
    status = read_u64(writer.path, STATUS)
    corrupt(writer.path, status + 256 + 20, b"\0")
    assert RingReader.open(writer.path).meta == {"step": 1}
    corrupt(writer.path, status + 256 + 4032 + 20, b"\0")
    assert RingReader.open(writer.path).meta == {}


@pytest.mark.parametrize(
    ("offset", "data", "says"),
    [
        (0, b"NOTARING", "not an otel-fr ring"),
        (8, struct.pack("<I", 2), "version 2"),
        (16, struct.pack("<Q", 9), "checksum"),
        (120, struct.pack("<Q", 0), "still being created"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(ring: Path, offset: int, data: bytes, says: str) -> None:
    corrupt(ring, offset, data)
    with pytest.raises(RingFormatError, match=says) as caught:
        RingReader.open(ring)
    assert str(ring) in str(caught.value)


def test_a_file_being_created_is_said_to_be_that(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(bytes(600_000))
    with pytest.raises(RingFormatError, match="still being created"):
        RingReader.open(path)


def with_header(original: Original, **changes: int) -> bytes:
    """The ring with a header that says something else, under a checksum that fits."""
    names = ["magic", "version", "header_size", "capacity", "slots", "half_size", "status", "progress", "rows"]
    names += ["definitions", "slots_start", "file_size", "wall", "pid", "start"]
    values = dict(zip(names, HEADER.unpack_from(original.data), strict=True)) | changes
    header = HEADER.pack(*values.values())
    return header + struct.pack("<I", zlib.crc32(header)) + original.data[HEADER_CRC + 4 :]


u64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 8, 2**31, 2**32, 2**63, 2**64 - 1, 2**64 - 8])


@given(
    st.dictionaries(
        st.sampled_from(
            ["capacity", "slots", "half_size", "status", "progress", "rows", "definitions", "slots_start", "file_size"]
        ),
        u64 | st.integers(0, 700_000).map(lambda value: value * 8),
        min_size=1,
        max_size=4,
    )
)
def test_huge_and_overlapping_sections_are_refused_or_harmless(
    original: Original, ring: Path, changes: dict[str, int]
) -> None:
    if "capacity" in changes and changes["capacity"] < 2**64 - 1:
        changes.setdefault("slots", changes["capacity"] + 1)
    ring.write_bytes(with_header(original, **changes))
    with contextlib.suppress(RingFormatError):
        use_everything(ring)


@given(
    st.lists(
        st.tuples(
            st.integers(128, 1100) | st.integers(4096, 4096 + 16384 + 300) | st.integers(0, 2**20),
            st.binary(max_size=99),
        ),
        min_size=1,
        max_size=8,
    ),
    u64,
    u64,
    u64,
)
def test_scribbled_files_are_read_without_harm(
    original: Original, ring: Path, scribbles: list[tuple[int, bytes]], head: int, tail: int, generation: int
) -> None:
    data = bytearray(original.data)
    data[1024:1048] = struct.pack("<QQQ", head, tail, generation)
    for offset, scribble in scribbles:
        offset %= len(data)
        scribble = scribble[: len(data) - offset]
        data[offset : offset + len(scribble)] = scribble
    ring.write_bytes(data)
    with contextlib.suppress(RingFormatError):
        use_everything(ring)


@given(st.binary(max_size=9000))
def test_random_bytes_are_no_ring(ring: Path, data: bytes) -> None:
    ring.write_bytes(data)
    with pytest.raises(RingFormatError):
        RingReader.open(ring)


@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_ring_is_refused(original: Original, ring: Path, part: float) -> None:
    ring.write_bytes(original.data[: int(len(original.data) * part)])
    with pytest.raises(RingFormatError, match="truncated"):
        RingReader.open(ring)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RingFormatError, match="regular file"):
            RingReader.open(path)
    with pytest.raises(OSError, match="nothing"):
        RingReader.open(tmp_path / "nothing")


def test_a_huge_hole_is_gone_through_in_time(original: Original, ring: Path) -> None:
    """The largest ring a header can claim, all of it a hole, its counters at their end."""
    capacity = 2**24
    slots_start = HEADER.unpack_from(original.data)[10]
    size = slots_start + (capacity + 1) * 96
    data = bytearray(with_header(original, capacity=capacity, slots=capacity + 1, file_size=size))
    data[1024:1032] = struct.pack("<Q", 2**20)
    ring.write_bytes(data)
    os.truncate(ring, size)
    started = time.process_time()
    with RingReader.open(ring) as reader:
        records = list(reader.records())
        assert len(records) <= CAPACITY
        assert reader.torn == 2**20 - len(records)
    assert time.process_time() - started < 30


def test_definitions_that_expand_without_end_do_not_fill_the_memory(ring: Path, original: Original) -> None:
    """Hundreds of tiny definitions, each with a right checksum, each of a quarter of a million ranks."""
    claims = GroupDef("", "", "", (), "", 0).to_bytes()[:-1] + b"\x01\x00\x02" + b"\xff\xff\x0f"
    half = read_u64(ring, DEFINITIONS) + read_u64(ring, HALF)
    rows = read_u64(ring, PROGRESS)
    data = bytearray(original.data)
    place = 8
    for row in range(256):
        prefix = struct.pack("<III", len(claims), 1, 1)
        definition = prefix + struct.pack("<I", zlib.crc32(claims, zlib.crc32(prefix))) + claims
        data[half + place : half + place + len(definition)] = definition
        data[rows + row * 64 : rows + row * 64 + 8] = struct.pack("<Q", 1 << 32 | place // 8)
        place += len(definition) + 7 & ~7
    ring.write_bytes(data)
    started = time.process_time()
    with RingReader.open(ring) as reader:
        groups = reader.groups()
        assert all(len(row.group.ranks) == 2**18 - 1 for row in groups)
        assert sum(len(row.group.ranks) for row in groups) < 10**7
    assert time.process_time() - started < 30
