"""Heartbeats, sections and steps as a program uses them: in threads, with exceptions, wrongly, without a recording."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import otel_fr
from otel_fr.fault_tolerance import open_sections, sections
from otel_fr.ring import Activity, ActivityReader, RingWriter


def names(items: list[Activity]) -> list[str]:
    return [item.name for item in items]


def test_without_a_recording_nothing_happens_and_what_is_open_is_entered_then(
    request: pytest.FixtureRequest,
) -> None:
    otel_fr.heartbeat()
    otel_fr.step(3)
    with otel_fr.section("over"):
        pass
    otel_fr.start_section("load", timeout=5)
    with otel_fr.section("train"):
        reader: ActivityReader = request.getfixturevalue("reader")
        found = reader.open_sections()
        assert [(item.name, item.timeout_ms) for item in found] == [("load", 5000), ("train", 0)]
        step = reader.step()
        assert step is not None
        assert step.step == 3
        assert [item.step for item in found] == [3, 3]
    otel_fr.end_section("load")
    assert reader.open_sections() == []
    assert names(reader.ended(0)[0]) == ["train", "load"]
    assert reader.beats().last_ns == 0


def test_sections_nest_and_know_what_they_are_in(reader: ActivityReader) -> None:
    with otel_fr.section("a"), otel_fr.section("b", timeout=0.5), otel_fr.section("a"):
        one, two, three = reader.open_sections()
        assert (one.parent, one.root) == (0, one.number)
        assert (two.parent, two.root, two.timeout_ms) == (one.number, one.number, 500)
        assert (three.parent, three.root) == (two.number, one.number)
        otel_fr.step()
        with otel_fr.section("c"):
            step, inner = reader.step(), reader.open_sections()[-1]
            assert step is not None
            assert (inner.parent, inner.root, inner.step) == (step.number, step.number, 0)
    assert names(reader.ended(0)[0]) == ["c", "a", "b", "a"]
    with otel_fr.section("d"):
        (outer,) = reader.open_sections()
        assert outer.parent == step.number


def test_a_section_decorates_functions_each_call_of_which_is_one(reader: ActivityReader) -> None:
    @otel_fr.section("count", timeout=5)
    def count(number: int) -> list[str]:
        """Docs."""
        if number == 0:
            return names(reader.open_sections())
        return count(number - 1)

    @otel_fr.section("load")
    async def load() -> list[str]:
        await asyncio.sleep(0)
        return names(reader.open_sections())

    assert count(2) == ["count"] * 3
    assert count.__name__ == "count"
    assert asyncio.run(load()) == ["load"]
    assert reader.open_sections() == []


def test_an_exception_leaves_a_section_as_it_must(reader: ActivityReader) -> None:
    def fail() -> None:
        otel_fr.start_section("never ended")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), otel_fr.section("outer"), otel_fr.section("inner"):
        fail()
    assert reader.open_sections() == []
    found = {item.name: item for item in reader.ended(0)[0]}
    assert found["inner"].is_failed
    assert found["outer"].is_failed
    assert found["never ended"].is_left
    assert not found["never ended"].is_failed


def test_a_section_whose_end_an_exception_skipped_ends_when_it_is_started_again(
    reader: ActivityReader, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        try:
            otel_fr.start_section("batch", timeout=9)
            raise ValueError
        except ValueError:
            pass
    assert len(reader.open_sections()) == 1
    ended = reader.ended(0)[0]
    assert [item.is_left for item in ended] == [True] * 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "'batch'" in caplog.text
    assert reader.misuses == 4


def test_sections_may_overlap(reader: ActivityReader) -> None:
    otel_fr.start_section("a")
    otel_fr.start_section("b")
    otel_fr.end_section("a")
    assert names(reader.open_sections()) == ["b"]
    sections.end_all_sections()
    assert reader.open_sections() == []
    assert not any(item.is_left for item in reader.ended(0)[0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: otel_fr.end_section("never started"), "'never started' was ended but not started"),
        (lambda: otel_fr.start_section(17), "must be text, not int"),  # type: ignore[arg-type]
        (lambda: otel_fr.end_section(None), "None was ended but not started"),  # type: ignore[arg-type]
        (lambda: otel_fr.start_section("x", timeout="long"), "must be a number of seconds above 0, not 'long'"),  # type: ignore[arg-type]
        (lambda: otel_fr.start_section("x", timeout=-1), "must be a number of seconds above 0, not '-1'"),
        (lambda: otel_fr.start_section("x", timeout=float("nan")), "must be a number of seconds above 0, not 'nan'"),
        (lambda: otel_fr.step("seven"), "number of a step must be an integer"),  # type: ignore[arg-type]
        (lambda: otel_fr.step(2**80), "number of a step must be an integer"),
    ],
)
def test_a_wrong_call_is_one_warning_and_is_counted(
    reader: ActivityReader, caplog: pytest.LogCaptureFixture, call: Any, text: str
) -> None:
    call()
    call()
    assert text in caplog.text
    wrong = [record for record in caplog.records if text in record.getMessage()]
    assert len(wrong) == 1
    assert reader.misuses >= 2


def test_a_with_block_of_a_wrong_section_runs(reader: ActivityReader) -> None:
    with otel_fr.section(b"bytes", timeout=object()):  # type: ignore[arg-type]
        ran = True
    assert ran
    assert reader.misuses == 1


def test_endless_and_huge_timeouts_are_none(reader: ActivityReader) -> None:
    otel_fr.start_section("a", timeout=float("inf"))
    otel_fr.start_section("b", timeout=1e30)
    otel_fr.start_section("c", timeout=1e-9)
    assert [item.timeout_ms for item in reader.open_sections()] == [0, 0, 1]


def test_steps_of_the_program_replace_those_of_optimizers(reader: ActivityReader) -> None:
    removed: list[int] = []
    sections.count_steps_by(lambda: removed.append(1))
    sections.count_step()
    sections.count_step()
    step = reader.step()
    assert step is not None
    assert (step.step, step.is_automatic) == (2, True)
    assert reader.beats().count == 2
    otel_fr.step()
    otel_fr.step()
    otel_fr.step(40)
    otel_fr.step()
    sections.count_step()
    step = reader.step()
    assert step is not None
    assert (step.step, step.is_automatic) == (41, False)
    assert removed == [1]
    assert [(item.step, item.is_automatic) for item in reader.ended(0)[0]] == [
        (1, True),
        (2, True),
        (0, False),
        (1, False),
        (40, False),
    ]


def test_a_thread_that_ends_takes_its_sections_with_it(reader: ActivityReader) -> None:
    def work() -> None:
        otel_fr.start_section("in a thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert reader.open_sections() == []
    (found,) = reader.ended(0)[0]
    assert found.is_left
    assert found.native_id not in (0, threading.get_native_id())


def test_another_thread_may_end_a_section(reader: ActivityReader) -> None:
    otel_fr.start_section("a")
    thread = threading.Thread(target=lambda: otel_fr.end_section("a"))
    thread.start()
    thread.join()
    assert reader.open_sections() == []
    with otel_fr.section("b"):
        assert names(reader.open_sections()) == ["b"]


def test_calls_after_the_recording_change_nothing(reader: ActivityReader) -> None:
    otel_fr.start_section("a")
    sections.detach()
    otel_fr.heartbeat()
    otel_fr.end_section("a")
    otel_fr.step()
    assert names(reader.open_sections()) == ["a"]


def test_a_section_whose_name_is_too_long_is_ended_by_that_name(reader: ActivityReader) -> None:
    otel_fr.start_section("x" * 200, 5)
    otel_fr.start_section("x" * 200, 5)
    assert len(reader.open_sections()) == 1
    otel_fr.end_section("x" * 200)
    assert reader.open_sections() == []


def test_a_closed_ring_is_no_error_for_the_program(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    sections.attach(writer.activity)
    otel_fr.start_section("a")
    writer.close()  # in the instant before `detach`
    otel_fr.heartbeat()
    otel_fr.end_section("a")
    with otel_fr.section("b"):
        otel_fr.step()
    assert sections._state.opened == {}


@pytest.mark.usefixtures("reader")
def test_a_program_that_never_ends_its_sections_is_bounded(ring: RingWriter) -> None:
    for number in range(3 * open_sections.MAX_OPEN):
        otel_fr.start_section(f"section {number} " + "x" * 1000)
    assert len(sections._state.opened) == open_sections.MAX_OPEN
    assert len(ring.activity.names) <= 256


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_in_threads_ends_with_the_same_sections(reader: ActivityReader, seed: int) -> None:
    """Each thread keeps its own account; at the end the ring has just what is open, and the log what has ended."""
    expected: list[str] = []
    ended: list[int] = []
    barrier = threading.Barrier(3)
    done = threading.Event()

    def work(which: int) -> None:
        numbers = random.Random(seed * 10 + which)
        own: list[str] = []
        count = 0
        barrier.wait()
        for _ in range(60):
            name = f"{which}.{numbers.randrange(5)}"
            choice = numbers.randrange(4)
            if choice == 0 and name not in own:
                otel_fr.start_section(name)
                own.append(name)
            elif choice == 1 and name in own:
                otel_fr.end_section(name)
                own.remove(name)
                count += 1
            elif choice == 2:
                with otel_fr.section("with"):
                    otel_fr.heartbeat()
                count += 1
            else:
                with pytest.raises(KeyError), otel_fr.section("failing"):
                    raise KeyError
                count += 1
        expected.extend(own)
        ended.append(count)
        barrier.wait()
        done.wait(60)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait()
    barrier.wait()
    try:
        assert sorted(names(reader.open_sections())) == sorted(expected)
        assert len(reader.ended(0)[0]) == sum(ended)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert reader.misuses == 0
