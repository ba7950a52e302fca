"""The ring's section of decisions: what is written is read, whatever is overwritten or damaged."""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from pathlib import Path

import pytest

from otel_fr.fault_tolerance import decisions
from otel_fr.ring import Decided, RingReader, RingWriter
from otel_fr.ring.decision_layout import DECISIONS_SIZE, MAX_TEXT, NAMES, ROWS


@pytest.fixture
def ring(tmp_path: Path) -> RingWriter:
    """A ring that `otel_fr.decision` writes to."""
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    decisions.attach(writer.decisions)
    return writer


@pytest.fixture(autouse=True)
def _detached() -> object:
    yield
    decisions.detach()


def read(ring: RingWriter) -> list[tuple[str, int, int, str]]:
    with RingReader.open(ring.path) as reader:
        assert reader.decisions is not None
        return [(item.name, item.first, item.last, item.value) for item in reader.decisions.decided()]


def test_equal_values_are_one_row(ring: RingWriter) -> None:
    for number in range(1000):
        decisions.decision("skip_batch", number == 812)
        decisions.decision("scale", 0.5 if number < 500 else 0.25)
    assert read(ring) == [
        ("skip_batch", 1, 812, "False"),
        ("scale", 1, 500, "0.5"),
        ("scale", 501, 1000, "0.25"),
        ("skip_batch", 813, 813, "True"),
        ("skip_batch", 814, 1000, "False"),
    ]


def test_the_oldest_changes_are_overwritten(ring: RingWriter) -> None:
    decisions.decision("constant", "yes")
    for number in range(3 * ROWS):
        decisions.decision("changing", number)
    found = read(ring)
    assert len(found) == ROWS
    assert found[-1] == ("changing", 3 * ROWS, 3 * ROWS, str(3 * ROWS - 1))
    assert {name for name, *_ in found} == {"changing"}


class Hostile:
    """A value whose methods must not be called, as those of a tensor on a device."""

    def __eq__(self, _: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError

    def __str__(self) -> str:
        raise AssertionError

    __repr__ = __str__
    __bool__ = __str__


def test_what_is_no_plain_value_counts_by_its_type(ring: RingWriter) -> None:
    for value in (Hostile(), Hostile(), (1, Hostile(), "a"), [None, 2.5], list(range(40)), "x" * 500, 1, True):
        decisions.decision("value", value)
    many = f"({', '.join(map(str, range(16)))}, ... (40 in all))"
    assert [value for *_, value in read(ring)] == [
        "<Hostile>",
        "(1, <Hostile>, a)",
        "(None, 2.5)",
        many[:MAX_TEXT],
        "x" * MAX_TEXT,
        "1",
        "True",
    ]


def test_tuples_are_compared_without_their_items_code(ring: RingWriter) -> None:
    for value in ((1, 2), (1, 2), [1, 2], (1, Hostile()), (1, Hostile()), (1, 2)):
        decisions.decision("shape", value)
    assert read(ring) == [
        ("shape", 1, 3, "(1, 2)"),
        ("shape", 4, 5, "(1, <Hostile>)"),
        ("shape", 6, 6, "(1, 2)"),
    ]


def test_values_that_differ_only_behind_what_is_kept_have_another_digest(ring: RingWriter) -> None:
    for last in "ab":
        decisions.decision("long", "x" * 200 + last)
    with RingReader.open(ring.path) as reader:
        assert reader.decisions is not None
        first, second = reader.decisions.decided()
    assert first.value == second.value
    assert first.digest != second.digest


def test_names_are_bounded_and_wrong_calls_do_nothing(ring: RingWriter) -> None:
    for number in range(2 * NAMES):
        decisions.decision(f"name {number}", number)
    decisions.decision(7, 1)  # type: ignore[arg-type]
    decisions.decision(["a"], 1)  # type: ignore[arg-type]
    assert len(read(ring)) == NAMES


def test_without_a_recording_it_does_nothing(ring: RingWriter) -> None:
    decisions.detach()
    decisions.decision("skip", True)
    assert read(ring) == []


def test_numpys_scalars_are_values(ring: RingWriter) -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.bool_(True), numpy.int64(7), numpy.zeros(3)):
        decisions.decision("value", value)
    assert [value for *_, value in read(ring)] == ["True", "7", "<ndarray>"]


def test_a_damaged_section_is_read_without_errors(ring: RingWriter) -> None:
    for number in range(50):
        decisions.decision(f"name {number % 3}", number)
    chance = random.Random(4)
    with ring.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        start = struct.unpack_from("<Q", data, 48)[0] - DECISIONS_SIZE
        for _ in range(300):
            at = start + 8 + chance.randrange(DECISIONS_SIZE - 16)
            data[at : at + 4] = chance.randbytes(4)
            with RingReader.open(ring.path) as reader:
                assert reader.decisions is not None
                assert all(isinstance(item, Decided) for item in reader.decisions.decided())


def test_the_page_is_enough_to_read_it(ring: RingWriter) -> None:
    decisions.decision("skip_batch", False)
    decisions.decision("skip_batch", False)
    decisions.decision("skip_batch", True)
    data = ring.path.read_bytes()
    start = struct.unpack_from("<Q", data, 48)[0] - 73_792
    assert struct.unpack_from("<4Q", data, start) == (1, 2, 1, 0)
    word, count = struct.unpack_from("<2Q", data, start + 64)
    assert (word, count) == ((10 + 1) << 32 | zlib.crc32(b"skip_batch"), 3)
    assert data[start + 80 : start + 90] == b"skip_batch"
    row = struct.unpack_from("<QQqQQII80s", data, start + 8256 + 2 * 128)
    assert row[:3] == (2, 3, -1)
    assert row[4:] == (zlib.crc32(b"True"), 0, 4, b"True".ljust(80, b"\0"))
