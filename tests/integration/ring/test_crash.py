"""A rank that is killed at any instant leaves all calls that it enqueued, and no others."""

from __future__ import annotations

import inspect
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from otel_fr.ring import GroupDef, RecordState, RingReader, RingWriter
from tests.support.commands import script_environment
from tests.support.paths import SCRIPTS
from tests.support.ring_model import BIG_SITE, COMPLETION_LAG, GROUP, SMALL_SITE, Program, Proof
from tests.support.waiting import PATIENCE

CAPACITY = 200
CHILD = SCRIPTS / "ring_writer.py"


def kill_after(folder: Path, tickets: int, spin: int, program: Program) -> tuple[Path, Proof]:
    """Run a child until it has appended ``tickets`` records and a little more, then SIGKILL it."""
    folder.mkdir()
    proof = Proof.make(folder / "proof")
    arguments = [str(folder), str(folder / "proof"), str(CAPACITY), str(program.shapes), str(program.site_bytes)]
    child = subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, env=script_environment())
    try:
        assert child.stdout is not None
        path = Path(child.stdout.readline().decode().strip())
        deadline = time.monotonic() + PATIENCE
        words = proof.words
        while words[0] < tickets:
            assert child.poll() is None, "the child has ended"
            assert time.monotonic() < deadline, "the child does not append"
        for _ in range(spin):
            pass
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    return path, proof


# Few shapes: the definitions never fill their half. Endless shapes with long call sites: the ring flips all the time.
@pytest.mark.parametrize(("shapes", "site_bytes", "flipping"), [(10, SMALL_SITE, False), (10**9, 4000, True)])
def test_sigkill_at_random_instants(tmp_path: Path, shapes: int, site_bytes: int, flipping: bool) -> None:
    program = Program(shapes, site_bytes)
    chance = random.Random(shapes + site_bytes)
    flips = 0
    for round_ in range(16):
        path, proof = kill_after(tmp_path / str(round_), chance.randrange(1, 1500), chance.randrange(4000), program)
        appended, completed = proof.words[0], proof.words[1]
        with RingReader.open(path) as reader:
            head = reader.head
            # The call during the kill may already be in the ring.
            assert head in (appended, appended + 1)
            # A flip retires the old generation before it writes the number of the new one.
            firsts = [proof.first_of(reader.generation - before) for before in (1, 0)]
            records = list(reader.records())
            oldest = records[0].record_id if records else head
            assert oldest in [max(0, head - CAPACITY, first) for first in firsts]
            assert [record.record_id for record in records] == list(range(oldest, head))
            for record in records:
                program.check(record)
                if record.record_id < completed:
                    assert record.state is not RecordState.IN_FLIGHT
                if record.record_id > completed:
                    assert record.state is RecordState.IN_FLIGHT
            assert reader.torn == 0
            assert reader.lost == oldest
            assert reader.meta == {"rank": 3}
            (row,) = reader.groups()
            assert row.group == GROUP
            # The row is written after the record, so it may be one call behind.
            assert head - row.issued in (0, 1)
            assert row.ended in (completed, completed + 1)
            flips += reader.generation - 1
    assert bool(flips) == flipping


WRITER_FILES = {inspect.getfile(base) for base in RingWriter.__mro__ if base is not object}


class EveryInstant:
    """Calls ``look`` before each bytecode of the writer, as if the rank had been killed there."""

    def __init__(self, look: Callable[[bool], None]) -> None:
        self.look = look
        self.instants = 0
        self.flips = 0
        self.before: Any = None

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in WRITER_FILES:
            return None
        flipping = frame.f_code.co_name == "_flip"
        self.flips += event == "call" and flipping
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.instants += 1
            sys.settrace(None)
            try:
                self.look(flipping or (frame.f_back is not None and frame.f_back.f_code.co_name == "_flip"))
            finally:
                sys.settrace(self._trace)
        return self._trace

    def __enter__(self) -> EveryInstant:
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self.before)


def test_killed_before_any_bytecode_of_the_writer(tmp_path: Path) -> None:
    program = Program(10**9, BIG_SITE)
    capacity = 3
    writer = RingWriter.create([tmp_path], "ring", capacity, {"step": 0})
    main = writer.add_group(GROUP)
    other = GroupDef("f" * 16, "1", "other", (0, 1), "gloo", 1)
    # Calls that must be in the file. The current call may be in it or not.
    appended = completed = 0
    first_of_generation = {0: 0, 1: 0}
    others: list[list[GroupDef]] = [[]]
    steps = [0]

    def look(flipping: bool) -> None:
        with RingReader.open(writer.path) as reader:
            head = reader.head
            assert head in (appended, appended + 1)
            kept = max(0, head - capacity, first_of_generation[reader.generation - 1])
            # A flip first gives up a generation, and only then updates the header.
            less = max(kept, first_of_generation.get(reader.generation, 0)) if flipping else kept
            records = list(reader.records())
            ids = [record.record_id for record in records]
            assert ids in (list(range(kept, head)), list(range(less, head)))
            for record in records:
                program.check(record)
                if record.record_id != completed:
                    assert (record.state is RecordState.IN_FLIGHT) == (record.record_id > completed)
            assert reader.torn == 0
            groups = [row.group for row in reader.groups()]
            assert groups[0] == GROUP
            assert groups[1:] in others
            assert reader.meta["step"] in steps

    with EveryInstant(look) as instants:
        for number in range(12):
            program.issue(writer, main, number)
            first_of_generation.setdefault(writer.generation, number)
            appended = number + 1
            if number >= COMPLETION_LAG - 1:
                program.complete(writer, main, number - COMPLETION_LAG + 1)
                completed = number - COMPLETION_LAG + 2
            if number == 4:
                others = [[], [other]]
                index = writer.add_group(other)
                others = [[other]]
                steps = [0, 1]
                writer.set_meta({"step": 1})
                steps = [1]
            if number == 8:
                others = [[other], []]
                writer.remove_group(index)
                others = [[]]
                steps = [1, 2]
                writer.set_meta({"step": 2})
                steps = [2]
    assert instants.flips >= 2
    assert instants.instants > 2000
