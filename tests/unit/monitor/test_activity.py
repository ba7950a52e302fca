"""When heartbeats and sections are overdue, and what is learned: rules without a clock or a process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from otel_fr.config import Config
from otel_fr.monitor import activity
from otel_fr.monitor.activity import HEARTBEAT, OUTSIDE, SECTION, Given, Watched, watched
from otel_fr.monitor.activity_watch import ActivityWatch
from otel_fr.monitor.learned import SHORTEST, LearnedLimits, path_of
from otel_fr.ring import Activity, Beats, RingReader, RingWriter
from otel_fr.ring import activity_layout as layout

NOTHING = LearnedLimits(0)
SECOND = 1_000_000_000


def section(name: str, began: float, timeout: float = 0, number: int = 1) -> Activity:
    return Activity(number, False, name, 1, 1, int(began * SECOND), None, int(timeout * 1000), 0, number, -1)


def beats(last: float = 0, *, limit: float = 0, first: float = 0, since: float = 0, outside: float = 0, end: float = 0):  # type: ignore[no-untyped-def]
    return Beats(
        int(bool(last)),
        int(last * SECOND),
        int(limit * 1000),
        int(first * 1000),
        int(since * SECOND),
        int(outside * 1000),
        int(end * SECOND),
    )


def overdue(items: list[Watched], now: float) -> list[tuple[str, str]]:
    return [(item.kind, item.name) for item in items if item.is_overdue(int(now * SECOND))]


def test_a_section_is_overdue_after_its_timeout_and_not_before() -> None:
    found = watched(beats(), [section("a", 10, 2), section("b", 10)], NOTHING, Given())
    assert overdue(found, 12.0) == []
    assert overdue(found, 12.1) == [(SECTION, "a")]
    assert overdue(found, 9999) == [(SECTION, "a")]


def test_no_heartbeat_is_due_before_the_first_one() -> None:
    assert watched(beats(), [], NOTHING, Given(5)) == []
    found = watched(beats(100), [], NOTHING, Given(5))
    assert overdue(found, 105) == []
    assert overdue(found, 106) == [(HEARTBEAT, "")]


def test_the_first_heartbeat_has_a_limit_if_the_program_gives_one() -> None:
    found = watched(beats(first=30, since=100), [], NOTHING, Given(5))
    assert overdue(found, 129) == []
    assert overdue(found, 131) == [(HEARTBEAT, "")]


def test_no_heartbeat_is_due_in_a_section_with_a_limit_nor_right_after_it() -> None:
    long = section("evaluation", 100, 3600)
    assert overdue(watched(beats(100), [long], NOTHING, Given(5)), 3000) == []
    after = watched(beats(100, end=3000), [], NOTHING, Given(5))
    assert overdue(after, 3004) == []
    assert overdue(after, 3006) == [(HEARTBEAT, "")]
    assert overdue(watched(beats(100), [section("no limit", 100)], NOTHING, Given(5)), 106) == [(HEARTBEAT, "")]


def test_no_heartbeat_is_due_once_the_interpreter_ends() -> None:
    assert watched(beats(100, outside=1, end=50), [], NOTHING, Given(5), exiting=True) == []


def test_the_time_outside_sections_has_a_given_limit() -> None:
    assert overdue(watched(beats(outside=2, end=10), [], NOTHING, Given()), 13) == [(OUTSIDE, "")]
    assert overdue(watched(beats(outside=2, end=10), [section("a", 11)], NOTHING, Given()), 13) == []
    assert watched(beats(outside=2), [], NOTHING, Given()) == []


def test_what_is_overdue_is_reported_first_and_not_more_than_fits() -> None:
    items = [Watched(SECTION, f"s{number}", number, 1.0 if number == 30 else None) for number in range(40)]
    found = activity.reported(items, 3 * SECOND)
    assert len(found) == 16
    assert (found[0].name, found[0].is_overdue) == ("s30", True)
    assert [item.name for item in found[1:3]] == ["s0", "s1"]


def test_the_environment_gives_limits_where_the_program_gives_none() -> None:
    given = Given(outside=3, sections={"a": 4, "b": 1})
    found = watched(beats(), [section("a", 10), section("b", 10, 100), section("c", 10)], NOTHING, given)
    assert [item.limit_s for item in found] == [4, 100, None]
    assert overdue(watched(beats(end=10), [], NOTHING, given), 13.1) == [(OUTSIDE, "")]


# ---- learned limits


def test_a_limit_is_learned_from_what_was_seen_often_enough() -> None:
    learned = LearnedLimits(3)
    for seconds in (10.0, 20.0):
        learned.note_section("step", seconds)
    assert learned.section("step") is None
    learned.note_section("step", 15.0)
    assert learned.section("step") == 100.0
    for _ in range(10):
        learned.note_section("step", 0.001)
    assert learned.section("step") == 100.0
    for _ in range(3):
        learned.note_section("fast", 0.001)
    assert learned.section("fast") == SHORTEST


def test_a_longer_evaluation_passes_no_learned_limit() -> None:
    """As its own section it was not seen often enough; once it was, its own time counts."""
    learned = LearnedLimits(10)
    for _ in range(100):
        learned.note_section("step", 8.0)
        learned.note_heartbeat(8.0)
    evaluation = section("evaluation", 100)
    assert overdue(watched(beats(100), [evaluation], learned, Given()), 100 + 3600) == []
    assert overdue(watched(beats(100), [], learned, Given()), 100 + 41) == [(HEARTBEAT, "")]
    learned.note_heartbeat(900.0)  # an evaluation that is no section, seen before
    assert overdue(watched(beats(100), [], learned, Given()), 100 + 3600) == []
    for _ in range(10):
        learned.note_section("evaluation", 600.0)
    assert overdue(watched(beats(100), [evaluation], learned, Given()), 100 + 2999) == []
    assert overdue(watched(beats(100), [evaluation], learned, Given()), 100 + 3001) == [(SECTION, "evaluation")]


def test_nothing_is_learned_unless_it_is_wanted() -> None:
    learned = LearnedLimits(0)
    for _ in range(100):
        learned.note_section("a", 1.0)
        learned.note_heartbeat(1.0)
        learned.note_outside(1.0)
    assert (learned.section("a"), learned.heartbeat(), learned.outside()) == (None, None, None)


def test_what_was_learned_is_kept_over_restarts(tmp_path: Path) -> None:
    path = path_of(tmp_path, "job/../7 é", 3)
    assert path.parent.parent == tmp_path
    first = LearnedLimits(4)
    for _ in range(3):
        first.note_section("données", 10.0)
    first.note_heartbeat(20.0, 5)
    first.save(path)
    second = LearnedLimits(4)
    second.load(path)
    assert second.section("données") is None
    assert second.heartbeat() == 100.0
    second.note_section("données", 1.0)
    assert second.section("données") == 50.0
    assert [file.name for file in path.parent.iterdir()] == ["limits_rank_3.json"]


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_is_no_error(tmp_path: Path, seed: int) -> None:
    path = path_of(tmp_path, "", 0)
    learned = LearnedLimits(1)
    learned.note_section("a", 10.0)
    learned.save(path)
    numbers = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(1 + seed % 4):
        data[numbers.randrange(len(data))] = numbers.randrange(256)
    path.write_bytes(data)
    found = LearnedLimits(1)
    found.load(path)
    limit = found.section("a")
    assert limit is None or limit > 0


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{",
        '{"version": 2}',
        '{"version": 1, "sections": [1]}',
        '{"version": 1, "sections": {"a": {"count": true, "longest_s": 1e999}}, "heartbeat": {"count": -1}}',
        "[" * 100_000,
    ],
)
def test_a_file_of_something_else_is_no_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    found = LearnedLimits(1)
    found.load(path)
    assert (found.section("a"), found.heartbeat()) == (None, None)


# ---- from the ring


def body(writer: RingWriter, number: int, name: str, began: float, timeout: float = 0):  # type: ignore[no-untyped-def]
    times = (int(began * SECOND), 0, int(timeout * 1000))
    return (number, layout.KIND_SECTION, writer.activity.reference(name), 1, 0, *times, 0, number, -1)


def test_the_ring_is_followed_and_each_overdue_item_is_new_once(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    watch = ActivityWatch(RingReader.open(writer.path), Config(heartbeat_timeout=5), 0)
    row = writer.activity.open(body(writer, 1, "load", 100, timeout=2))
    writer.activity.heartbeat(100 * SECOND)
    watch.poll(103 * SECOND)
    assert [item.name for item in watch.new_overdue(103 * SECOND)] == ["load"]
    watch.poll(104 * SECOND)
    assert watch.new_overdue(104 * SECOND) == []
    assert watch.is_overdue(104 * SECOND)
    writer.activity.end(row, body(writer, 1, "load", 100), 105 * SECOND)
    (ended,) = watch.poll(106 * SECOND)
    assert ended.name == "load"
    assert not watch.is_overdue(106 * SECOND)
    watch.poll(111 * SECOND)
    assert [item.kind for item in watch.new_overdue(111 * SECOND)] == [HEARTBEAT]
    assert watch.reported(111 * SECOND)[0].kind == HEARTBEAT


def test_what_the_rank_is_ended_for_is_reported_although_its_handler_ends_it(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    watch = ActivityWatch(RingReader.open(writer.path), Config(), 0)
    row = writer.activity.open(body(writer, 1, "load", 100, timeout=2))
    writer.activity.open(body(writer, 2, "cleanup", 102, timeout=60))
    watch.poll(103 * SECOND)
    watch.keep(103 * SECOND)
    writer.activity.end(row, body(writer, 1, "load", 100), 105 * SECOND)
    watch.poll(106 * SECOND)
    assert not watch.is_overdue(106 * SECOND)
    assert [(item.name, item.age_s, item.is_overdue) for item in watch.reported(106 * SECOND)] == [("load", 3.0, True)]


def test_a_section_of_a_thread_that_is_gone_is_not_watched(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    watch = ActivityWatch(RingReader.open(writer.path), Config(), 0)
    gone = body(writer, 1, "load", 100, timeout=2)
    writer.activity.open((*gone[:4], 2**22 + 1, *gone[5:]))
    watch.poll(200 * SECOND)
    assert not watch.is_overdue(200 * SECOND)


def test_limits_are_learned_from_the_ring_and_kept(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    config = Config(learn_steps=3, state_dir=tmp_path / "state", job_id="job")
    watch = ActivityWatch(RingReader.open(writer.path), config, 2)
    for number in range(1, 6):
        at = 100.0 * number
        row = writer.activity.open(body(writer, number, "load", at))
        writer.activity.end(row, body(writer, number, "load", at), int((at + 10) * SECOND))
        writer.activity.heartbeat(int((at + 20) * SECOND))
        watch.poll(int((at + 30) * SECOND))
    writer.activity.open(body(writer, 9, "load", 1000))
    watch.poll(1051 * SECOND)
    assert [item.name for item in watch.new_overdue(1051 * SECOND)] == ["load"]
    watch.save()
    data = json.loads((tmp_path / "state" / "job" / "limits_rank_2.json").read_text())
    assert data["sections"] == {"load": {"count": 5, "longest_s": 10.0}}
    assert data["heartbeat"]["longest_s"] == 100.0
    assert data["outside"]["longest_s"] == 490.0


def test_a_ring_of_an_older_writer_has_nothing_to_watch(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    writer._words[writer.activity._first] = 0
    watch = ActivityWatch(RingReader.open(writer.path), Config(heartbeat_timeout=1), 0)
    assert watch.poll(10**15) == []
    assert watch.reported(10**15) == ()


def test_a_monitor_that_replaces_another_does_not_learn_again_what_that_one_has(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    for number in range(1, 6):
        row = writer.activity.open(body(writer, number, "load", 100.0 * number))
        writer.activity.end(row, body(writer, number, "load", 100.0 * number), int((100.0 * number + 10) * SECOND))
    watch = ActivityWatch(RingReader.open(writer.path), Config(learn_steps=1), 0, since_ns=500 * SECOND)
    assert len(watch.poll(600 * SECOND)) == 5
    assert watch._learned._sections["load"].count == 1
