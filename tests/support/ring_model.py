"""A plain-Python model of a ring's content: programs with records that follow from their numbers."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    GroupDef,
    Record,
    RecordState,
    RingReader,
    RingWriter,
    SignatureDef,
    SiteDef,
    StaleGeneration,
)

GROUP = GroupDef("00112233aabbccdd", "0", "default_pg", (0, 1, 2, 3), "gloo", 0)
SMALL_SITE = 20
BIG_SITE = 60_000
"""Bytes of a call site. A few of the big sites fill a half of the definitions, so that the ring flips."""
COMPLETION_LAG = 3


@lru_cache(maxsize=64)
def signature_of(number: int, shapes: int) -> SignatureDef:
    shape = (number % shapes, 7)
    return SignatureDef(
        operation="all_reduce" if number % 2 else "send",
        backend="gloo",
        input_sizes=(shape,),
        output_sizes=(shape,),
        input_dtypes=("Float",),
        output_dtypes=("Float",),
        reduce_op="sum" if number % 2 else None,
        root=None,
        peer=None if number % 2 else 1,
        tag=None if number % 2 else 0,
        input_splits=None,
        output_splits=None,
        input_bytes=28 * (number % shapes),
        output_bytes=28 * (number % shapes),
    )


@lru_cache(maxsize=64)
def site_of(number: int, shapes: int, site_bytes: int) -> SiteDef:
    place = number % shapes
    return SiteDef((("/job/train.py", place, "f" * site_bytes), ("/job/main.py", 7, "<module>")))


@dataclass(frozen=True)
class Program:
    """Calls that follow from their numbers."""

    shapes: int
    site_bytes: int = SMALL_SITE

    def issue(self, writer: RingWriter, group: int, number: int, ident: int = 11) -> int:
        """Append call ``number`` as capture does: look up definitions, add new ones, try again if the ring flipped."""
        for last in (False, True):
            key = number % (2 * self.shapes)
            sig = writer.signatures.get(key)
            if sig is None:
                sig = writer.define_signature(key, signature_of(number, self.shapes))
            generation = writer.generation
            site = writer.sites.get(number % self.shapes)
            if site is None:
                site = writer.define_site(number % self.shapes, site_of(number, self.shapes, self.site_bytes))
            thread = writer.threads.get(ident)
            if thread is None:
                thread = writer.define_thread(ident, "MainThread")
            kind = KIND_COLLECTIVE if number % 2 else KIND_P2P
            try:
                return writer.append(
                    group, sig, site, thread, generation, kind, number % 5, number, number + 1, number + 2,
                    number % 9, 600_000, 1000 + number,
                )  # fmt: skip
            except StaleGeneration:
                if last:
                    raise
        raise AssertionError("unreachable")

    def complete(self, writer: RingWriter, group: int, number: int) -> None:
        writer.complete(number + 1, group, number, self.state_of(number), self.end_of(number))

    @staticmethod
    def state_of(number: int) -> RecordState:
        return RecordState.FAILED if number % 7 == 0 else RecordState.COMPLETED

    @staticmethod
    def end_of(number: int) -> int:
        return 2000 + number

    def check(self, record: Record) -> None:
        """Assert that a record has exactly its call's values. It may show that the call has not ended."""
        number = record.record_id
        assert record.group == GROUP
        assert record.signature == signature_of(number, self.shapes)
        assert record.site == site_of(number, self.shapes, self.site_bytes)
        assert record.thread == "MainThread"
        assert (record.coll_seq, record.p2p_seq, record.op_id) == (number, number + 1, number + 2)
        assert (record.issued_ns, record.pair_index, record.flags) == (1000 + number, number % 9, number % 5)
        assert (record.kind, record.timeout_ms) == (KIND_COLLECTIVE if number % 2 else KIND_P2P, 600_000)
        assert record.waited_ns is None
        if record.state is RecordState.IN_FLIGHT:
            assert record.ended_ns is None
        else:
            assert (record.state, record.ended_ns) == (self.state_of(number), self.end_of(number))


def assert_works(writer: RingWriter) -> None:
    """Assert that records can be written into an empty ring, and read again."""
    program, group = Program(shapes=3), writer.add_group(GROUP)
    for number in range(5):
        program.issue(writer, group, number)
    with RingReader.open(writer.path) as reader:
        assert len(list(reader.records())) == 5


class Proof:
    """The progress of a child process, in memory that outlives it. The child writes it after each call of the ring.

    Words: 0: appended; 1: completed; 8 + generation % 500: the first record of that generation.
    """

    SIZE = 4096

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("Q")

    @classmethod
    def make(cls, path: Path) -> Proof:
        path.write_bytes(bytes(cls.SIZE))
        return cls(path)

    def note_generation(self, generation: int, first: int) -> None:
        self.words[8 + generation % 500] = first

    def first_of(self, generation: int) -> int:
        return self.words[8 + generation % 500] if generation > 0 else 0


def corrupt(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def read_u64(path: Path, offset: int) -> int:
    with open(path, "rb") as file:
        file.seek(offset)
        value: int = struct.unpack("<Q", file.read(8))[0]
        return value


def read_all(path: Path) -> tuple[list[Record], RingReader]:
    reader = RingReader.open(path)
    return list(reader.records()), reader
