"""The Python and the compiled writer make the same file of the same program, to the byte."""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.capture.native.writer import CompiledRingWriter
from otel_fr.ring import POSTED, GroupDef, RingWriter, SiteDef, StaleGeneration
from otel_fr.ring.layout import HEADER_SIZE, Layout
from tests.support.engines import needs_ring_writer
from tests.support.ring_model import signature_of

pytestmark = needs_ring_writer

_HEADER_TAIL = 1024
"""From here on, the header does not depend on the process and the time."""
_BIG = "x" * 50_000


def _perform(writer: Any, seed: int, steps: int) -> list[object]:
    """A random program; returns what the writer answered."""
    choose = random.Random(seed)
    groups: list[int] = []
    answers: list[object] = []
    for step in range(steps):
        action = choose.randrange(12)
        if action == 0 or not groups:
            ranks = tuple(choose.sample(range(5000), choose.choice([0, 3, 3000 if step % 5 == 0 else 9])))
            groups.append(writer.add_group(GroupDef(f"{step:016x}", f"pg{step}", "d", ranks, "gloo", step)))
            answers.append(groups[-1])
        elif action == 1:
            writer.remove_group(choose.choice([*groups, 10**6]))
        elif action == 2:
            writer.count(choose.choice(["hook_errors", "dropped"]), choose.randrange(3))
        elif action == 3:
            writer.set_meta({"step": step})
        elif action in (4, 5) and writer.head:
            numbers = (choose.randint(1, writer.head), choose.choice(groups), choose.randrange(9), choose.randrange(4))
            writer.complete(*numbers, choose.choice([0, step]))
        elif action == 6 and writer.head:
            writer.wait(choose.randint(1, writer.head), choose.choice([POSTED, step]))
        else:
            answers.append(_append(writer, choose, choose.choice(groups), step))
        answers.append((writer.head, writer.generation))
    return answers


def _append(writer: Any, choose: random.Random, group: int, step: int) -> object:
    text = _BIG if choose.random() < 0.2 else "f"
    site = SiteDef((("/job/train.py", step, text),))
    values = [choose.choice([0, 1, 2]), choose.randrange(256), *(choose.randrange(2**64) for _ in range(3))]
    timeout = choose.choice([0, 5, 2**32 + 1])
    for _ in range(3):
        generation = writer.generation
        signature = writer.signatures.get(step % 7) or writer.define_signature(step % 7, signature_of(step % 7, 100))
        place = writer.sites.get(site) or writer.define_site(site, site)
        thread = writer.threads.get(step % 3) or writer.define_thread(step % 3, f"worker {step % 3}")
        try:
            return writer.append(
                group, signature, place, thread, generation, *values, choose.randrange(2**40), timeout, step
            )
        except (StaleGeneration, KeyError) as error:
            if isinstance(error, KeyError):
                return "no such group"
    raise AssertionError("stale three times")


def _content(writer: Any) -> bytes:
    data: bytes = writer.path.read_bytes()
    return data[_HEADER_TAIL:]


@given(seed=st.integers(0, 2**32), capacity=st.integers(1, 30), steps=st.integers(0, 150))
def test_both_write_the_same_bytes(seed: int, capacity: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        python = RingWriter.create([Path(folder)], "python", capacity, {"rank": 1})
        compiled = CompiledRingWriter.create([Path(folder)], "compiled", capacity, {"rank": 1})
        assert _perform(python, seed, steps) == _perform(compiled, seed, steps)
        assert _content(python) == _content(compiled)
        python.close()
        compiled.close()


def test_numbers_that_do_not_fit_are_refused_by_both(tmp_path: Path) -> None:
    good = [0, 5, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 7]
    for writer_type in (RingWriter, CompiledRingWriter):
        writer: Any = writer_type.create([tmp_path], writer_type.__name__, 4, {})
        writer.add_group(GroupDef("0" * 16, "g", "", (0,), "gloo", 0))
        for position, bad in [(1, 2**32), (2, -1), (5, 256), (7, 2**64), (8, -1), (11, -1)]:
            with pytest.raises(struct.error):
                writer.append(*good[:position], bad, *good[position + 1 :])
        with pytest.raises(StaleGeneration):
            writer.append(*good[:4], 2, *good[5:])
        with pytest.raises(KeyError):
            writer.append(9, *good[1:])
        assert writer.head == 0
        assert writer.append(*good) == 1
        writer.close()
        with pytest.raises(ValueError, match=r"closed|released"):
            writer.complete(1, 0, 1, 1, 9)


def test_a_mapping_of_another_layout_is_refused() -> None:
    from otel_fr.capture.native._ringwriter import Core

    layout = Layout.of(4)
    sections = (layout.half_size, layout.status, layout.progress, 256, layout.definitions, layout.slots_start)
    with pytest.raises(ValueError, match="layout"):
        Core(bytearray(HEADER_SIZE), layout.capacity, layout.slots, *sections, layout.file_size)
    with pytest.raises(BufferError):
        Core(b"read only", layout.capacity, layout.slots, *sections, layout.file_size)
