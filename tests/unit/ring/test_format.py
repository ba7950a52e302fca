"""A ring decoded by hand, from docs/reference/ring-format.md alone: struct and zlib, nothing of the reader."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

from otel_fr.ring import KIND_P2P, GroupDef, RecordState, RingWriter, SignatureDef, SiteDef
from tests.support.ring_model import GROUP

SIGNATURE = SignatureDef(
    operation="all_to_all_single",
    backend="nccl",
    input_sizes=((300, 4), (2,)),
    output_sizes=((7,),),
    input_dtypes=("Float", "Float", "Long"),
    output_dtypes=("Half",),
    reduce_op="max",
    root=5,
    peer=-1,
    tag=300,
    input_splits=(1, 200),
    output_splits=(0,),
    input_bytes=4808,
    output_bytes=2**40,
    any_source=True,
)


class Hand:
    """The payload encoding of the page."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def uint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def sint(self) -> int:
        value = self.uint()
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def text(self) -> str:
        size = self.uint()
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def uints(self) -> list[int]:
        return [self.uint() for _ in range(self.uint())]


def u64(data: bytes, offset: int) -> int:
    value: int = struct.unpack_from("<Q", data, offset)[0]
    return value


def definition(data: bytes, generation: int, ref: int, kind: int) -> Hand:
    start = u64(data, 64) + generation % 2 * u64(data, 32) + 8 * ref
    length, of_generation, of_kind, crc = struct.unpack_from("<IIII", data, start)
    payload = data[start + 16 : start + 16 + length]
    assert (of_generation, of_kind) == (generation, kind)
    assert crc == zlib.crc32(data[start : start + 12] + payload)
    return Hand(payload)


def document(data: bytes, start: int) -> tuple[int, object]:
    length, crc, number = struct.unpack_from("<IIQ", data, start)
    text = data[start + 16 : start + 16 + length]
    assert crc == zlib.crc32(struct.pack("<Q", number) + text)
    return number, json.loads(text)


def test_the_page_is_enough_to_read_the_file(tmp_path: Path) -> None:  # noqa: PLR0915
    writer = RingWriter.create([tmp_path], "ring", 5000, {"rank": 3})
    other = GroupDef("00ff" * 4, "tp", "tensor parallel", (1, 3, 5, 7, 100), "nccl", 2)
    writer.add_group(GROUP)
    index = writer.add_group(other)
    sig = writer.define_signature("s", SIGNATURE)
    site = writer.define_site("t", SiteDef((("/job/é.py", 300, "step"), ("/job/main.py", 1, "<module>"))))
    thread = writer.define_thread(2**63, "worker")
    for number in range(5001):
        writer.append(index, sig, 0, 0, 1, 0, 0, number, 0, number, 0, 0, 9)
    ticket = writer.append(index, sig, site, thread, 1, KIND_P2P, 9, 41, 42, 43, 2**32 + 7, 600_000, 123_456_789)
    writer.complete(ticket, index, 0, RecordState.FAILED, 123_999_999)
    writer.complete(ticket - 1, index, 5000, RecordState.COMPLETED, 124_000_000)
    writer.set_state(1)
    writer.set_monitor_pid(99)
    writer.count("dropped", 2)
    writer.set_meta({"rank": 4})
    writer.set_exception({"type": "KeyError"})
    for number in range(1, 7):
        writer.add_thread_exception({"type": "OSError", "thread": f"loader-{number}"})
    data = writer.path.read_bytes()

    assert data[:8] == b"OTELFRRB"
    assert struct.unpack_from("<II", data, 8) == (1, 4096)
    capacity, slots, half_size = u64(data, 16), u64(data, 24), u64(data, 32)
    assert (capacity, slots, half_size) == (5000, 5001, 64 * 5000)
    assert u64(data, 80) == len(data) == u64(data, 72) + 96 * slots
    assert u64(data, 96) == os.getpid()
    assert struct.unpack_from("<I", data, 112)[0] == zlib.crc32(data[:112])
    assert u64(data, 120) == 1
    head, tail, generation = u64(data, 1024), u64(data, 1032), u64(data, 1040)
    assert (head, tail, generation, u64(data, 1056)) == (5002, 1, 1, 0)
    assert u64(data, u64(data, 64) + half_size) == 1

    slot = u64(data, 72) + head % slots * 96
    fields = struct.unpack_from("<QqQQQIIIIIBBHIIIIqQ", data, slot)
    assert fields[:5] == (head, 123_456_789, 41, 42, 43)
    group_ref, sig_ref, site_ref, slot_generation = fields[5:9]
    assert fields[9:14] == (7, 1, 9, 0, 600_000)
    assert fields[15] == zlib.crc32(data[slot : slot + 72])
    assert fields[17:] == (0, 123_999_999 << 2 | 2)

    hand = definition(data, slot_generation, group_ref, 1)
    assert hand.uint() == 0
    assert [hand.text() for _ in range(4)] == ["00ff" * 4, "tp", "tensor parallel", "nccl"]
    assert hand.uint() == 2
    runs = [(hand.sint(), hand.sint(), hand.uint()) for _ in range(hand.uint())]
    assert [first + step * count for first, step, size in runs for count in range(size)] == [1, 3, 5, 7, 100]

    hand = definition(data, slot_generation, sig_ref, 2)
    assert hand.uint() == 1 | 4 | 8 | 16 | 32 | 64 | 128
    assert (hand.text(), hand.text(), hand.uint(), hand.uint()) == ("all_to_all_single", "nccl", 4808, 2**40)
    assert (hand.text(), hand.sint(), hand.sint(), hand.sint()) == ("max", 5, -1, 300)
    assert (hand.uints(), hand.uints()) == ([1, 200], [0])
    assert [hand.uints() for _ in range(hand.uint())] == [[300, 4], [2]]
    assert [hand.uints() for _ in range(hand.uint())] == [[7]]
    assert [(hand.uint(), hand.text()) for _ in range(hand.uint())] == [(2, "Float"), (1, "Long")]
    assert [(hand.uint(), hand.text()) for _ in range(hand.uint())] == [(1, "Half")]
    assert hand.at == len(hand.data)

    hand = definition(data, slot_generation, site_ref, 3)
    assert hand.uint() == 0
    frames = [(hand.text(), hand.uint(), hand.text()) for _ in range(hand.uint())]
    assert frames == [("/job/é.py", 300, "step"), ("/job/main.py", 1, "<module>")]
    hand = definition(data, slot_generation, fields[14], 4)
    assert (hand.uint(), hand.text()) == (2**63, "worker")

    row = struct.unpack_from("<8Q", data, u64(data, 48) + 64)
    assert row == (1 << 32 | group_ref, 5000, 5000, 42, 5002, 2, 123_456_789, 124_000_000)
    assert u64(data, u64(data, 48) + 64 * 2) == 0

    status = u64(data, 40)
    assert struct.unpack_from("<6Q", data, status) == (1, 99, 0, 2, 0, 0)
    assert sorted([document(data, status + 256), document(data, status + 4288)]) == [(1, {"rank": 3}), (2, {"rank": 4})]
    assert document(data, status + 8320) == (1, {"type": "KeyError"})
    of_threads = [document(data, status + 16384 + 4096 * place) for place in range(4)]
    assert of_threads == [(n, {"type": "OSError", "thread": f"loader-{n}"}) for n in (1, 2, 3, 6)]
    assert u64(data, 48) == status + 16384 + 4 * 4096 + 137_472 + 73_792


def test_equal_inputs_and_outputs_are_written_once(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    index = writer.add_group(GROUP)
    signature = SignatureDef(
        "broadcast", "gloo", ((2,),), ((2,),), ("Float",), ("Float",), None, 0, None, None, None, None, 8, 8
    )
    ref = writer.define_signature("s", signature)
    writer.append(index, ref, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1)
    hand = definition(writer.path.read_bytes(), 1, ref, 2)
    assert hand.uint() == 8 | 256 | 512
    assert (hand.text(), hand.text(), hand.uint(), hand.uint(), hand.sint()) == ("broadcast", "gloo", 8, 8, 0)
    assert [hand.uints() for _ in range(hand.uint())] == [[2]]
    assert [(hand.uint(), hand.text()) for _ in range(hand.uint())] == [(1, "Float")]
    assert hand.at == len(hand.data)
