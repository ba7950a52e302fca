"""Calls whose end only PyTorch's recorder shows: what becomes of them by what it says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_fr.config import Config
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.write import DumpContents
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.nccl.recorder_entries import parse_answer
from otel_fr.monitor.rules import stalled_call
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.report_builder import reported_call
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.monitor.telemetry.span_builder import SpanBuilder
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, RecordState
from tests.support.followed_ring import FollowedRing
from tests.support.otlp_messages import attributes
from tests.support.rings import float_signature
from tests.support.worker_server import answer, begun, ended, entry

SECOND = 1_000_000_000
JUST_ENDED: dict[str, Any] = {"duration_ms": None, "retired": False}


class Rank(FollowedRing):
    """A rank on NCCL whose ring, as for every device, says "unknown" of each call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.group = self.add_group(0, "0", "default_pg", "nccl")
        self.reporter = Reporter(self.reader, Config.from_env({}), Exporter(None, None))
        self.reporter.devices.is_read = True
        self.out: list[Tracked] = []
        send = self.reporter.run.tail.poll
        self.reporter.run.tail.poll = lambda *args, **more: self._keep(send(*args, **more))  # type: ignore[method-assign]

    def _keep(self, items: list[Tracked]) -> list[Tracked]:
        self.out += items
        return items

    def issue(
        self,
        seconds_ago: float = 0.0,
        kind: int = KIND_COLLECTIVE,
        operation: str = "all_reduce",
        group: int | None = None,
        number: int | None = None,
    ) -> None:
        """A call; without ``number``, of the next one, in the default group."""
        what = float_signature(operation, backend="nccl", peer=1 if kind == KIND_P2P else None)
        at = time.monotonic_ns() - int(seconds_ago * SECOND)
        ticket, group, _ = self.append(self.group if group is None else group, at, what, kind=kind, number=number)
        self.writer.complete(ticket, group, 0, RecordState.UNKNOWN, 0)

    def show(self, *entries: dict[str, Any], seconds_ago: float = 0.0) -> list[Tracked]:
        """The recorder is asked; the calls that have ended by that."""
        asked = time.monotonic_ns()
        offset = time.time_ns() - asked + int(seconds_ago * SECOND)
        self.reporter.devices.note(parse_answer(answer(list(entries)))[0], asked, offset)
        return self.poll()

    def poll(self) -> list[Tracked]:
        self.out = []
        self.reporter.follow()
        return self.out

    def in_flight(self) -> list[dict[str, Any]]:
        return [asdict(call) for call in self.reporter.build(time.monotonic_ns()).in_flight]

    @property
    def last_state(self) -> str | None:
        last = self.reporter.build(time.monotonic_ns()).last
        return None if last is None else last.state

    @property
    def progress(self) -> tuple[int, int, int]:
        """Enqueued, completed, and calls that ended."""
        (group,) = self.reporter.build(time.monotonic_ns()).groups
        return group.enqueued, group.completed, group.calls_ended


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    with closing(Rank(tmp_path)) as rank:
        yield rank


def on_device(item: Tracked) -> DeviceTimes:
    assert item.device is not None
    return item.device


def test_a_call_ends_when_its_device_has_completed_it(rank: Rank) -> None:
    rank.issue()
    assert rank.poll() == []
    assert rank.progress == (1, 0, 0)
    (item,) = rank.show(ended(1, ms=7.5))
    assert item.record.state is RecordState.COMPLETED
    assert item.record.ended_ns is not None
    assert 0 <= item.record.ended_ns - item.record.issued_ns < 60 * SECOND
    assert on_device(item).duration_s == 0.0075
    assert rank.progress == (1, 1, 1)
    assert rank.in_flight() == []
    assert reported_call(item, time.monotonic_ns()).run_s == 0.0075


def test_calls_of_several_groups_with_equal_numbers_end_each_by_its_own_entry(rank: Rank) -> None:
    """As after ``split_group``: each group has a communicator and counts of its own, also if the ranks are the same."""
    other = rank.add_group(1, "12", "tensor_parallel", "nccl")
    for group in (rank.group, other):
        rank.issue(group=group, number=1)
    of_other = {"process_group": ["12", "tensor_parallel"], "pg_id": 1, "record_id": 1}
    limited = begun(1, timeout_ms=12_000)  # since ``torch.distributed.set_timeout``
    (item,) = [item for item in rank.show(limited, ended(1, ms=3.0, **of_other)) if item.record.ended_ns is not None]
    assert (item.record.group.name, item.record.state) == ("12", RecordState.COMPLETED)
    assert [(call["group"], call["timeout_ms"]) for call in rank.in_flight()] == [(f"{0:016d}", 12_000)]
    (item,) = rank.show(ended(1, ms=8.0), ended(1, ms=3.0, **of_other))
    assert (item.record.group.name, item.device) != ("12", None)
    assert rank.in_flight() == []


def test_a_call_that_its_device_has_begun_is_in_flight_since_then(rank: Rank) -> None:
    rank.issue(seconds_ago=20)
    rank.poll()
    assert rank.show(begun(1), seconds_ago=6) == []
    assert rank.show(begun(1), seconds_ago=3) == []  # the recorder says anew that it has seen that just now
    assert rank.show(begun(1)) == []
    (call,) = rank.in_flight()
    assert call["state"] == "scheduled"
    assert not call["is_posted"]
    assert not call["is_queued"]
    assert 6 <= call["wait_s"] < call["age_s"]
    situation = rank.reporter.situation(time.monotonic_ns())
    assert stalled_call(situation, 5.0) == 0
    assert rank.progress == (1, 0, 0)
    assert [item.record.record_id for item in rank.show(ended(1))] == [0]


def test_a_call_that_its_device_has_not_begun_waits_for_nobody(rank: Rank) -> None:
    rank.issue(seconds_ago=20)
    rank.issue(seconds_ago=19)
    rank.poll()
    assert [item.record.record_id for item in rank.show(ended(1), entry(2))] == [0]
    (call,) = rank.in_flight()
    assert (call["is_posted"], call["is_queued"]) == (True, True)
    assert rank.reporter.situation(time.monotonic_ns()).oldest is None


def test_a_call_that_the_recorder_is_about_to_show_has_not_ended_although_the_ring_does_not_know(rank: Rank) -> None:
    """The collector takes a collective for ended once all members say that they do not know."""
    rank.issue()
    rank.poll()
    assert [(call["state"], call["is_posted"], call["is_queued"]) for call in rank.in_flight()] == [
        ("scheduled", True, False)
    ]
    assert rank.last_state == "scheduled"
    rank.show(begun(1))
    assert rank.last_state == "scheduled"
    rank.show(ended(1))
    assert rank.last_state == "completed"


def delay_and_duration(item: Tracked) -> tuple[float, float]:
    """Seconds in the queue and on the device."""
    device = on_device(item)
    return ((device.began_ns or 0) - item.record.issued_ns) / SECOND, device.duration_s or 0.0


def test_time_in_the_queue_is_that_until_the_call_was_first_seen_begun_or_its_end_less_its_duration(rank: Rank) -> None:
    for _ in range(2):
        rank.issue(seconds_ago=20)
    rank.poll()
    rank.show(begun(1), entry(2), seconds_ago=12)
    first, second = rank.show(ended(1, ms=5_000.0), ended(2, ms=2_000.0))
    assert delay_and_duration(first) == pytest.approx((8.0, 5.0), abs=0.5)
    assert delay_and_duration(second) == pytest.approx((18.0, 2.0), abs=0.5)


def test_the_duration_of_a_call_that_has_just_ended_is_awaited_once(rank: Rank) -> None:
    """PyTorch reads it when its watchdog retires the call."""
    for _ in range(3):
        rank.issue()
    found = rank.show(ended(1), ended(2, **JUST_ENDED), ended(3, **JUST_ENDED))
    assert [item.record.record_id for item in found] == [0]
    timed, untimed = rank.show(ended(1), ended(2, ms=7.5), ended(3, **JUST_ENDED))
    assert (on_device(timed).duration_s, on_device(untimed).duration_s) == (0.0075, None)
    assert {timed.record.state, untimed.record.state} == {RecordState.COMPLETED}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_call_that_has_just_ended_has_completed_if_no_answer_shows_it_again(rank: Rank, is_lost: bool) -> None:
    rank.issue()
    rank.issue()
    rank.show(ended(1), ended(2, **JUST_ENDED))
    if is_lost:
        rank.reporter.devices.lose()
        (item,) = rank.poll()
    else:
        (item,) = rank.show(ended(9))
    assert item.record.state is RecordState.COMPLETED


def test_an_end_that_the_watchdog_has_not_seen_counts_if_a_second_answer_shows_it_too(rank: Rank) -> None:
    """The recorder shows a call as ended for a moment, after it has entered the call."""
    rank.issue()
    rank.issue()
    assert rank.show(ended(1, **JUST_ENDED), ended(2, **JUST_ENDED)) == []
    assert [item.record.state for item in rank.show(ended(1, **JUST_ENDED), begun(2))] == [RecordState.COMPLETED]
    rank.reporter.devices.lose(is_over=True)
    assert (rank.poll(), len(rank.in_flight())) == ([], 1)


def test_the_beginning_of_a_call_that_was_not_timed_is_not_known(rank: Rank) -> None:
    rank.issue(seconds_ago=20)
    rank.poll()
    (item,) = rank.show(ended(1, time_discovered_started_ns=0, duration_ms=None))
    assert (on_device(item).began_ns, on_device(item).duration_s) == (None, None)


def test_without_timing_the_first_call_of_a_stream_may_wait_since_it_was_enqueued(rank: Rank) -> None:
    rank.issue(seconds_ago=20)
    rank.issue(seconds_ago=20)
    rank.poll()
    rank.issue(seconds_ago=20, kind=KIND_P2P, operation="send", number=1)
    message = entry(3, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=1)
    assert rank.show(entry(1), entry(2), message) == []
    calls = [(call["record"], call["state"], call["is_posted"], call["is_queued"]) for call in rank.in_flight()]
    assert calls == [(0, "scheduled", False, False), (1, "scheduled", True, True), (2, "scheduled", False, False)]
    assert [call["wait_s"] for call in rank.in_flight()] == [None] * 3
    assert stalled_call(rank.reporter.situation(time.monotonic_ns()), 5.0) == 0
    untimed = ended(1, time_discovered_started_ns=0, duration_ms=None)
    assert [item.record.record_id for item in rank.show(untimed, entry(2), message)] == [0]
    assert [(call["record"], call["is_queued"]) for call in rank.in_flight()] == [(1, False), (2, False)]
    assert rank.progress == (2, 1, 1)


def test_a_call_that_pytorch_has_given_up_has_failed(rank: Rank) -> None:
    rank.issue(seconds_ago=21)
    rank.poll()
    (item,) = rank.show(begun(1, retired=True, timeout_ms=20_000))
    assert item.record.state is RecordState.FAILED
    assert item.record.timed_out
    assert rank.progress == (1, 0, 1)


def test_a_call_that_the_recorder_no_longer_has_is_unknown(rank: Rank) -> None:
    rank.issue()
    rank.poll()
    (item,) = rank.show(ended(7))
    assert (item.record.state, item.device) == (RecordState.UNKNOWN, None)


@pytest.mark.parametrize("first", [0, 100])
def test_a_call_that_a_cuda_graph_captured_waits_for_nobody_and_is_told(rank: Rank, first: int) -> None:
    """The recorder does not know it, although it has overwritten nothing that new; ``first``: its oldest entry."""
    rank.issue(seconds_ago=20)
    rank.issue(seconds_ago=19)
    rank.poll()
    oldest = ended(1, record_id=first, time_created_ns=time.time_ns() - 20 * SECOND)
    kept, captured = rank.show(oldest)
    assert (kept.record.state, captured.record.state) == (RecordState.COMPLETED, RecordState.UNKNOWN)
    assert on_device(captured).is_captured
    assert rank.in_flight() == []
    assert rank.reporter.situation(time.monotonic_ns()).oldest is None
    last = rank.reporter.build(time.monotonic_ns()).last
    assert last is not None
    assert (last.sequence, last.state, last.is_posted) == (2, "unknown", True)
    contents = DumpContents.from_ring(rank.reader, reason="stall", devices=rank.reporter.devices.seen())
    assert [entry.get("otel_fr_captured", False) for entry in contents.entries()] == [False, True]
    encoded = [SpanBuilder("run", 0, 0).encode(item.record, device=item.device) for item in (kept, captured)]
    spans = ScopeSpans.FromString(b"".join(encoded)).spans
    assert [attributes(span.attributes).get("torch.collective.captured") for span in spans] == [None, True]


def test_a_call_that_was_enqueued_after_the_recorder_was_asked_is_still_awaited(rank: Rank) -> None:
    asked = time.monotonic_ns()
    rank.issue()
    rank.poll()
    rank.reporter.devices.note([], asked, time.time_ns() - asked)
    assert rank.poll() == []


def test_entries_of_an_earlier_group_of_the_name_and_of_other_operations_are_not_taken(rank: Rank) -> None:
    rank.issue()
    rank.issue()
    rank.poll()
    old = ended(1, time_created_ns=time.time_ns() - 30 * SECOND)
    other = ended(2, profiling_name="nccl:broadcast")
    assert [item.record.state for item in rank.show(old, other)] == [RecordState.UNKNOWN] * 2


def test_the_end_of_a_batch_is_that_of_its_sends_and_receives(rank: Rank) -> None:
    rank.issue(kind=KIND_P2P, operation="send")
    rank.issue(kind=KIND_P2P, operation="recv")
    rank.poll()
    p2p = {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0}
    parts = [entry(1, profiling_name="nccl:send 0->1", **p2p), entry(2, profiling_name="nccl:recv 0<-1", **p2p)]
    assert rank.show(*parts) == []
    found = rank.show(*parts, ended(3, profiling_name="nccl:coalesced", **{**p2p, "is_p2p": False}))
    assert [item.record.state for item in found] == [RecordState.COMPLETED] * 2


def test_the_end_of_a_batch_of_collectives_is_theirs_whatever_came_before(rank: Rank) -> None:
    """Of the parts there may be entries that never end, or none."""
    rank.issue()
    rank.issue(kind=KIND_P2P, operation="send", number=1)
    rank.issue()
    message = begun(2, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=1, collective_seq_id=1)
    earlier = [ended(1), message]
    rank.poll()
    end: dict[str, Any] = {"profiling_name": "nccl:coalesced", "collective_seq_id": 2, "p2p_seq_id": 1, "record_id": 4}
    part: dict[str, Any] = {"p2p_seq_id": 1, "record_id": 3}
    found = rank.show(*earlier, entry(2, **part), begun(3, **end))
    assert [item.record.record_id for item in found] == [0]
    assert [(call["record"], call["is_queued"]) for call in rank.in_flight()] == [(1, False), (2, False)]
    found = rank.show(*earlier, ended(3, **end))
    assert [(item.record.record_id, item.record.state) for item in found] == [(2, RecordState.COMPLETED)]


def test_names_of_one_operation_are_one(rank: Rank) -> None:
    for operation in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "barrier"):
        rank.issue(operation=operation)
    rank.poll()
    names = ("_all_gather_base", "_reduce_scatter_base", "all_to_all", "all_reduce_barrier")
    found = rank.show(*[ended(number, profiling_name=f"nccl:{name}") for number, name in enumerate(names, 1)])
    assert [item.record.state for item in found] == [RecordState.COMPLETED] * 4


def test_while_the_recorder_does_not_answer_a_call_in_flight_stays_in_flight_until_its_group_goes_on(
    rank: Rank,
) -> None:
    rank.issue()
    rank.issue()
    rank.poll()
    rank.show(begun(1), entry(2))
    rank.issue()
    rank.poll()
    rank.reporter.devices.lose()
    assert [item.record.record_id for item in rank.poll()] == [2]  # nothing was known of it
    assert [call["record"] for call in rank.in_flight()] == [0, 1, 2]
    rank.issue()
    assert [item.record.record_id for item in rank.poll()] == [3, 0, 1]
    assert [call["record"] for call in rank.in_flight()] == [3]


def test_calls_come_out_in_flight_in_their_order_whatever_order_the_recorder_shows_them_in(rank: Rank) -> None:
    rank.issue()
    rank.issue()
    rank.poll()
    rank.show(entry(1), begun(2))
    rank.show(begun(1), begun(2))
    assert list(rank.reporter.run.tail.in_flight) == [0, 1]


def test_files_tell_what_the_recorder_has_shown(rank: Rank) -> None:
    for _ in range(3):
        rank.issue()
    rank.poll()
    rank.show(ended(1, ms=2.0), begun(2), entry(3, timeout_ms=12_000))
    contents = DumpContents.from_ring(rank.reader, reason="stall", devices=rank.reporter.devices.seen())
    first, second, third = contents.entries()
    assert (first["state"], first["otel_fr_state"], first["duration_ms"]) == ("completed", "completed", 2.0)
    assert first["time_discovered_started_ns"] <= first["time_discovered_completed_ns"]
    assert (second["state"], second["otel_fr_state"]) == ("started", "scheduled")
    assert second["otel_fr_waited_ns"] > second["otel_fr_issued_ns"] - 1
    assert (third["state"], third["otel_fr_waited_ns"], third["timeout_ms"]) == ("scheduled", 1, 12_000)
    assert contents.header()["pg_status"] == {
        "0": {"last_enqueued_collective": 3, "last_started_collective": 2, "last_completed_collective": 1}
    }


NO_ANSWERS = [b"", b"[]", b"nonsense", b"\x80\x02}.", b'{"entries": 7}', b'{"entries": ' + b"[" * 200_000 + b"}"]


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_what_is_no_answer_of_a_recorder_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_answer(body)


def test_entries_that_lack_a_field_are_left_out() -> None:
    whole = entry(1)
    broken: list[Any] = [None, 7, [], {}]
    required = ("process_group", "collective_seq_id", "profiling_name", "record_id", "time_created_ns")
    broken += [{key: value for key, value in whole.items() if key != name} for name in required]
    broken += [{**whole, name: {"a": 1}} for name in required]
    body = json.dumps({"entries": [*broken, whole]}).encode()
    assert [item.number for item in parse_answer(body)[0]] == [1]
