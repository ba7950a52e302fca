"""What each step enqueued in each group, from the records of a ring and the times of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from otel_fr.dumps.decisions import RUNS, reported_decisions
from otel_fr.dumps.step_calls import MAX_GROUPS, step_calls
from otel_fr.fault_tolerance import decisions, open_sections, sections
from otel_fr.match import Decision, Rank
from otel_fr.match.texts.hints import Divergence, first_divergence
from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    Activity,
    GroupDef,
    Record,
    RecordState,
    RingReader,
    RingWriter,
    SiteDef,
)
from tests.support.rings import float_signature

WORLD = GroupDef("a" * 16, "0", "default_pg", (0, 1), "gloo", 0)
SITE = SiteDef((("train.py", 1, "main"),))


def record(number: int, at: int, group: GroupDef = WORLD, kind: int = KIND_COLLECTIVE, size: int = 4) -> Record:
    state = RecordState.COMPLETED
    of = float_signature(sizes=((size,),))
    return Record(number, at, None, at, state, number, 0, number, 0, kind, 0, 0, "MainThread", group, of, SITE)


def step(number: int, began: int, at: int) -> Activity:
    return Activity(at + 1, True, "", 1, 1, began, None, 0, 0, at + 1, number)


def steps(*begins: int, first: int = 0) -> list[Activity]:
    return [step(first + at, began, at) for at, began in enumerate(begins)]


def seen(records: list[Record], of: list[Activity]) -> list[tuple[str, str, int, int]]:
    return [(item.name, item.value, item.step, item.last - 1) for item in step_calls(records, of)]


def test_the_text_of_a_call_is_the_same_on_all_ranks() -> None:
    def text(operation: str, given: tuple[int, ...], taken: tuple[int, ...]) -> str:
        sizes = [tuple((size,) for size in side) for side in (given, taken)]
        of = replace(
            float_signature(operation, sizes=((4,),)), input_sizes=sizes[0], output_sizes=sizes[1], reduce_op=None
        )
        calls = [record(number, number)._replace(signature=of) for number in (1, 2)]
        (first,) = {value for name, value, *_ in seen(calls, steps(0, 2, 4)) if name.startswith("first")}
        return first

    assert text("all_to_all_single", (6,), (2,)) == text("all_to_all_single", (2,), (6,)) == "all_to_all_single Float"
    assert text("all_gather", (1,), (1, 3)) == text("all_gather", (3,), (1, 3)) == "all_gather Float [1] [3]"
    assert text("gather", (1,), (1, 3)) == text("gather", (3,), ()) == "gather Float"
    assert text("_some_new_operation", (1,), (2,)) == text("_some_new_operation", (2,), (1,)) == "_some_new_operation"


def test_calls_are_counted_in_the_steps_that_have_ended() -> None:
    times = (11, 12, 21, 22, 31, 41, 42, 51)
    found = seen([record(at, when) for at, when in enumerate(times)], steps(10, 20, 30, 40, 50, first=7))
    first, calls = "first call in default_pg (0)", "calls in default_pg (0)"
    text = "all_reduce sum Float [4]"
    assert found == [(first, text, 7, 11), (calls, "2", 7, 8), (calls, "1", 9, 9), (calls, "2", 10, 10)]


def test_the_first_call_shows_the_shape_of_its_batch() -> None:
    found = seen([record(at, 10 * at + 11, size=4 + at // 2) for at in range(4)], steps(10, 20, 30, 40))
    texts = [(value, begin, end) for name, value, begin, end in found if name.startswith("first")]
    assert texts == [("all_reduce sum Float [4]", 0, 1), ("all_reduce sum Float [5]", 2, 3)]


def test_a_step_whose_calls_are_partly_overwritten_and_messages_do_not_count() -> None:
    records = [record(100 + at, 15 + 5 * at, kind=KIND_P2P if at == 4 else KIND_COLLECTIVE) for at in range(8)]
    found = seen(records, steps(10, 20, 30, 40, 50))
    assert [item for item in found if item[0].startswith("calls")] == [
        ("calls in default_pg (0)", "2", 1, 1),
        ("calls in default_pg (0)", "1", 2, 2),
        ("calls in default_pg (0)", "2", 3, 3),
    ]


def test_steps_that_are_counted_anew_in_each_epoch() -> None:
    again = [step(number, 10 * at + 10, at) for at, number in enumerate((0, 1, 2, 0, 1))]
    records = [record(at, 10 * at + 11) for at in range(5)]
    assert {(begin, end) for _, _, begin, end in seen(records, again)} == {(0, 0), (0, 1)}


def test_calls_of_other_threads_of_the_program_belong_to_no_step() -> None:
    """Those of the thread of the steps, 1, and of threads of C++ do: a device's backward pass runs in one."""
    threads = [("MainThread", 1), ("checkpoint", 7), ("Dummy-3", 9), ("checkpoint", 7), ("", 0)]
    records = [
        record(at, 11 + at)._replace(thread=name, thread_ident=ident) for at, (name, ident) in enumerate(threads)
    ]
    assert ("calls in default_pg (0)", "3", 0, 0) in seen(records, steps(10, 50))


def test_the_groups_used_last_are_told() -> None:
    groups = [GroupDef(f"{number:016x}", str(number), f"tp{number}", (0, 1), "gloo", number) for number in range(9)]
    records = [record(at, 11 + at, group) for at, group in enumerate(groups)]
    names = {name.rpartition(" in ")[2] for name, *_ in seen(records, steps(10, 50))}
    assert names == {f"tp{number} ({number})" for number in range(9 - MAX_GROUPS, 9)}


@pytest.mark.parametrize("of", [[], steps(10)])
def test_without_two_steps_nothing_is_counted(of: list[Activity]) -> None:
    assert not [item for item in seen([record(0, 11)], of) if item[0].startswith("calls")]


programs = st.lists(st.integers(0, 3), min_size=3, max_size=25)


def rank_of(number: int, counts: list[int], reached: int, window: int) -> Rank:
    """A rank that ran so many steps of a program; only its newest calls are known. ``counts``: calls of each step."""
    times = [(at, 100 * at + 1 + call) for at, count in enumerate(counts[:reached]) for call in range(count)]
    records = [record(at, when) for at, (_, when) in enumerate(times)][-window:]
    of = [step(at, 100 * at, at) for at in range(reached)]
    found = reported_decisions(None, step_calls(records, of))
    return Rank(number, decisions=tuple(Decision(*structs.astuple(item)) for item in found), step=reached - 1)


@given(programs, st.lists(st.tuples(st.integers(1, 25), st.integers(1, 80)), min_size=3, max_size=3))
def test_ranks_of_one_program_never_differ_however_far_they_are(
    counts: list[int], seen_of: list[tuple[int, int]]
) -> None:
    own, *others = [
        rank_of(at, counts, min(reached, len(counts)), window) for at, (reached, window) in enumerate(seen_of)
    ]
    assert first_divergence(own, others) is None


@given(st.integers(1, 20), st.integers(2, 10), st.integers(0, 5))
def test_the_step_in_which_a_rank_made_other_calls_is_found(at: int, more: int, calls: int) -> None:
    program = [3] * (at + more)
    astray = [calls if number == at else 3 for number in range(at + more)]
    peers = [rank_of(number, program, len(program), 1000) for number in (1, 2)]
    found = first_divergence(rank_of(0, astray, len(astray), 1000), peers)
    expected = None if calls == 3 else Divergence("calls in default_pg (0)", str(calls), "3", at)
    assert found == expected


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RingWriter]:
    monkeypatch.setattr(sections, "_state", open_sections.State())  # its steps are not those of other tests
    writer = RingWriter.create([tmp_path], "ring", 100, {})
    sections.attach(writer.activity)
    decisions.attach(writer.decisions)
    yield writer
    sections.detach()
    decisions.detach()


def test_the_programs_own_decisions_have_precedence(ring: RingWriter) -> None:
    for number in range(200):
        decisions.decision(f"name {number % 40}", number)
    records = [record(at, 10 * at + 11, size=at + 1) for at in range(8)]
    with RingReader.open(ring.path) as reader:
        found = reported_decisions(reader.decisions, step_calls(records, steps(*range(10, 90, 10))))
    assert len(found) == 48
    assert all(item.name.startswith("name") for item in found)
    assert len(reported_decisions(None, step_calls(records, steps(*range(10, 90, 10))))) == RUNS + 1
