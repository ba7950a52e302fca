"""When heartbeats and sections are overdue: rules without a clock or a process."""

from __future__ import annotations

from pathlib import Path

from otel_fr.config import Config
from otel_fr.monitor.ring import activity
from otel_fr.monitor.ring.activity import HEARTBEAT, OUTSIDE, SECTION, Given, Watched, watched
from otel_fr.monitor.ring.activity_watch import ActivityWatch
from otel_fr.ring import Activity, Beats, RingReader, RingWriter
from otel_fr.ring import activity_layout as layout
from tests.support.records import made_activity

SECOND = 1_000_000_000


def section(name: str, began: float, timeout: float = 0, number: int = 1) -> Activity:
    return made_activity(number, int(began * SECOND), name=name, timeout_ms=int(timeout * 1000))


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
    found = watched(beats(), [section("a", 10, 2), section("b", 10)], Given())
    assert overdue(found, 12.0) == []
    assert overdue(found, 12.1) == [(SECTION, "a")]
    assert overdue(found, 9999) == [(SECTION, "a")]


def test_no_heartbeat_is_due_before_the_first_one() -> None:
    assert watched(beats(), [], Given(5)) == []
    found = watched(beats(100), [], Given(5))
    assert overdue(found, 105) == []
    assert overdue(found, 106) == [(HEARTBEAT, "")]


def test_the_first_heartbeat_has_a_limit_if_the_program_gives_one() -> None:
    found = watched(beats(first=30, since=100), [], Given(5))
    assert overdue(found, 129) == []
    assert overdue(found, 131) == [(HEARTBEAT, "")]


def test_no_heartbeat_is_due_in_a_section_with_a_limit_nor_right_after_it() -> None:
    long = section("evaluation", 100, 3600)
    assert overdue(watched(beats(100), [long], Given(5)), 3000) == []
    after = watched(beats(100, end=3000), [], Given(5))
    assert overdue(after, 3004) == []
    assert overdue(after, 3006) == [(HEARTBEAT, "")]
    assert overdue(watched(beats(100), [section("no limit", 100)], Given(5)), 106) == [(HEARTBEAT, "")]


def test_no_heartbeat_is_due_once_the_interpreter_ends() -> None:
    assert watched(beats(100, outside=1, end=50), [], Given(5), exiting=True) == []


def test_the_time_outside_sections_has_a_given_limit() -> None:
    assert overdue(watched(beats(outside=2, end=10), [], Given()), 13) == [(OUTSIDE, "")]
    assert overdue(watched(beats(outside=2, end=10), [section("a", 11)], Given()), 13) == []
    assert watched(beats(outside=2), [], Given()) == []


def test_what_is_overdue_is_reported_first_and_not_more_than_fits() -> None:
    items = [Watched(SECTION, f"s{number}", number, 1.0 if number == 30 else None) for number in range(40)]
    found = activity.reported(items, 3 * SECOND)
    assert len(found) == 16
    assert (found[0].name, found[0].is_overdue) == ("s30", True)
    assert [item.name for item in found[1:3]] == ["s0", "s1"]


def test_the_environment_gives_limits_where_the_program_gives_none() -> None:
    given = Given(outside=3, sections={"a": 4, "b": 1})
    found = watched(beats(), [section("a", 10), section("b", 10, 100), section("c", 10)], given)
    assert [item.limit_s for item in found] == [4, 100, None]
    assert overdue(watched(beats(end=10), [], given), 13.1) == [(OUTSIDE, "")]


# ---- from the ring


def body(writer: RingWriter, number: int, name: str, began: float, timeout: float = 0):  # type: ignore[no-untyped-def]
    times = (int(began * SECOND), 0, int(timeout * 1000))
    return (number, layout.KIND_SECTION, writer.activity.reference(name), 1, 0, *times, 0, number, -1)


def test_the_ring_is_followed_and_each_overdue_item_is_new_once(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    watch = ActivityWatch(RingReader.open(writer.path), Config(heartbeat_timeout=5))
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
    watch = ActivityWatch(RingReader.open(writer.path), Config())
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
    watch = ActivityWatch(RingReader.open(writer.path), Config())
    gone = body(writer, 1, "load", 100, timeout=2)
    writer.activity.open((*gone[:4], 2**22 + 1, *gone[5:]))
    watch.poll(200 * SECOND)
    assert not watch.is_overdue(200 * SECOND)


def test_a_ring_of_an_older_writer_has_nothing_to_watch(tmp_path: Path) -> None:
    writer = RingWriter.create([tmp_path], "ring", 10, {})
    writer._words[writer.activity._first] = 0
    watch = ActivityWatch(RingReader.open(writer.path), Config(heartbeat_timeout=1))
    assert watch.poll(10**15) == []
    assert watch.reported(10**15) == ()
