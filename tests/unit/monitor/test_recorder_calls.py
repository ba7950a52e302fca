"""The calls of a rank, taken from PyTorch's recorder alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.dumps.write import DumpContents
from otel_fr.monitor.recorder_calls import RecorderCalls
from otel_fr.monitor.recorder_entries import parse_entries
from otel_fr.monitor.reporter import Reporter
from otel_fr.monitor.rules import Situation
from otel_fr.ring import GroupDef, RecordState, RingReader, RingWriter
from otel_fr.torch_recorder import CAPTURE_KEY
from tests.support.worker_server import answer, begun, ended, entry

SECOND = 1_000_000_000


def gloo(number: int, **fields: Any) -> dict[str, Any]:
    return entry(number, **{"profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"], **fields})


class Rank:
    def __init__(self, folder: Path, capacity: int = 100) -> None:
        self.writer = RingWriter.create([folder], "ring", capacity, {CAPTURE_KEY: "native"})
        self.group = self.writer.add_group(GroupDef("1" * 16, "0", "default_pg", (4, 5), "gloo", 0))
        self.reader = RingReader.open(self.writer.path)
        self.reporter = Reporter(self.reader, Config.from_env({}))
        assert self.reporter.recorder_calls is not None
        self.calls: RecorderCalls = self.reporter.recorder_calls

    def show(self, *entries: dict[str, Any], age: float = 0.0) -> None:
        asked = time.monotonic_ns()
        self.calls.note(parse_entries(answer(list(entries))), asked - int(age * SECOND), time.time_ns() - asked)
        self.reporter.follow()

    @property
    def states(self) -> list[RecordState]:
        return [record.state for record in self.calls.records()]

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """Enqueued, completed, calls, and those that ended."""
        (group,) = self.reporter.build(time.monotonic_ns()).groups
        return group.enqueued, group.completed, group.calls_enqueued, group.calls_ended


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    yield rank
    rank.reader.close()
    rank.writer.close()


def test_a_call_has_what_the_recorder_knows_of_it(rank: Rank) -> None:
    before = time.monotonic_ns()
    rank.show(gloo(1))
    (record,) = rank.calls.records()
    assert (record.record_id, record.coll_seq, record.op_id, record.state) == (0, 1, 1, RecordState.IN_FLIGHT)
    assert abs(record.issued_ns - before) < 60 * SECOND
    assert record.group.ranks == (4, 5)
    signature = record.signature
    assert (signature.operation, signature.backend, signature.input_sizes) == ("all_reduce", "gloo", ((3, 4),))
    assert (signature.input_bytes, signature.reduce_op, signature.root) == (48, None, None)
    assert [call.sequence for call in rank.reporter.build(before).in_flight] == [1]
    assert rank.progress == (1, 0, 1, 0)


def test_a_rank_waits_in_a_call_of_a_device_from_when_the_device_has_begun_it(rank: Rank) -> None:
    enqueued = time.time_ns() - 20 * SECOND
    shown = begun(1, time_created_ns=enqueued), entry(2, time_created_ns=enqueued)
    rank.show(*shown)
    began = rank.reporter.build(time.monotonic_ns()).in_flight[0].wait_s
    rank.show(*shown)  # the recorder says anew that it has seen the begin just now
    first, second = rank.reporter.build(time.monotonic_ns()).in_flight
    assert (first.is_posted, first.is_queued, second.is_posted, second.is_queued) == (False, False, True, True)
    assert first.wait_s is not None
    assert began is not None
    assert first.wait_s > began
    rank.show(ended(1), begun(2))
    (second,) = rank.reporter.build(time.monotonic_ns()).in_flight
    assert (second.sequence, second.is_posted, second.is_queued) == (2, False, False)


def test_without_times_a_rank_waits_in_a_call_from_when_it_was_enqueued(rank: Rank) -> None:
    rank.show(entry(1), gloo(2))
    assert [(call.is_posted, call.is_queued) for call in rank.reporter.build(time.monotonic_ns()).in_flight] == [
        (False, False),
        (False, False),
    ]


def test_a_call_that_is_retired_completes_at_the_next_look_and_waits_for_nobody_until_then(rank: Rank) -> None:
    rank.show(gloo(1))
    rank.show(gloo(1, retired=True))
    (call,) = rank.reporter.build(time.monotonic_ns()).in_flight
    assert call.is_posted
    rank.show(gloo(1, retired=True), gloo(2))
    assert rank.states == [RecordState.COMPLETED, RecordState.IN_FLIGHT]
    assert rank.progress == (2, 1, 2, 1)


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv", RecordState.FAILED),
        ("Connection closed by peer [127.0.0.1]:29069", RecordState.FAILED),
        ("loss is NaN", RecordState.COMPLETED),
    ],
)
@pytest.mark.parametrize("is_seen_before", [False, True])
def test_a_call_that_is_retired_when_an_exception_ends_the_rank_has_failed_if_it_says_so(
    rank: Rank, message: str, state: RecordState, is_seen_before: bool
) -> None:
    rank.show(gloo(1))
    if is_seen_before:
        rank.show(gloo(1, retired=True))
    rank.writer.set_exception({"type": "RuntimeError", "message": message})
    rank.show(gloo(1, retired=True))
    assert rank.states == [state]
    assert rank.progress == (1, int(state is RecordState.COMPLETED), 1, 1)


def test_what_was_retired_before_a_clean_end_has_completed(rank: Rank) -> None:
    rank.show(gloo(1, retired=True))
    assert rank.calls.settle()
    assert not rank.calls.settle()
    assert rank.states == [RecordState.COMPLETED]


def test_calls_that_the_recorder_overwrote_are_missed_and_those_that_vanish_unknown(rank: Rank) -> None:
    rank.show(gloo(1), gloo(2))
    rank.show(gloo(5), gloo(6))
    assert rank.states == [RecordState.UNKNOWN] * 2 + [RecordState.IN_FLIGHT] * 2
    assert rank.calls.missed == 2
    assert rank.reporter.dropped().records == 2


def test_calls_of_nccl_end_when_their_devices_end_them(rank: Rank) -> None:
    rank.show(ended(1))
    assert rank.states == [RecordState.COMPLETED]


def test_sends_and_receives_have_global_ranks_and_are_paired_in_their_order(rank: Rank) -> None:
    p2p = {"is_p2p": True, "collective_seq_id": 0}
    rank.show(
        entry(1, profiling_name="nccl:send 0->1", p2p_seq_id=1, **p2p),
        entry(2, profiling_name="nccl:coalesced", p2p_seq_id=1, **p2p),
        entry(3, profiling_name="nccl:send 0->1", p2p_seq_id=2, **p2p),
    )
    found = [(r.signature.operation, r.signature.peer, r.p2p_seq, r.pair_index) for r in rank.calls.records()]
    assert found == [("send", 5, 1, 0), ("send", 5, 2, 1)]


def test_calls_of_groups_that_are_not_known_are_left_out(rank: Rank) -> None:
    rank.show(gloo(1, process_group=["7", "early"]), gloo(2))
    assert [record.coll_seq for record in rank.calls.records()] == [2]


def test_a_rank_says_where_it_is_only_as_long_as_that_is_known(rank: Rank) -> None:
    sent: list[str] = []
    rank.reporter._put = lambda record, progress=False: sent.append(record.event_name)  # type: ignore[method-assign]
    rank.reporter.send(names.EVENT_PROGRESS)
    assert not sent
    rank.show(gloo(1))
    rank.reporter.send(names.EVENT_PROGRESS)
    assert len(sent) == 1
    rank.show(gloo(1), age=30)
    rank.reporter.send(names.EVENT_PROGRESS)
    rank.reporter.send(names.EVENT_IDLE)
    assert len(sent) == 1
    rank.reporter.send(names.EVENT_EXITED)
    rank.calls.lose()
    rank.reporter.send(names.EVENT_PROGRESS)
    assert sent[1:] == [names.EVENT_EXITED, names.EVENT_PROGRESS]
    assert rank.reporter.dropped().hook_errors == 1


def test_what_else_a_rank_says_waits_until_it_is_known_where_it_is(rank: Rank) -> None:
    """A report with calls of a while ago would show a healthy rank that waits since then."""
    sent: list[LogRecord] = []
    rank.reporter._put = lambda record, progress=False: sent.append(record)  # type: ignore[method-assign]
    rank.show(gloo(1), age=30)
    rank.reporter.send(names.EVENT_DUMP_WRITTEN, file="/dumps/rank_1", reason="stall")
    rank.reporter.send_later()
    now = time.monotonic_ns()
    assert not sent
    assert rank.reporter.situation(now) == Situation(now, now)
    rank.show(gloo(1, retired=True), gloo(2))
    rank.reporter.send_later()
    (record,) = sent
    report = rank_report.parse(record.body.string_value)
    assert (record.event_name, report.file, report.reason) == (names.EVENT_DUMP_WRITTEN, "/dumps/rank_1", "stall")
    assert all(call.age_s is None or call.age_s < 25 for call in report.in_flight)
    rank.reporter.send_later()
    assert len(sent) == 1
    assert rank.reporter.situation(now).oldest is not None


def test_files_have_the_calls_of_the_recorder(rank: Rank) -> None:
    rank.show(gloo(1, retired=True), gloo(2))
    rank.show(gloo(1, retired=True), gloo(2))
    contents = DumpContents.from_ring(rank.reader, reason="stall", calls=rank.reporter.frozen_calls())
    assert [item["otel_fr_state"] for item in contents.entries()] == ["completed", "scheduled"]
    (group,) = contents.header()["otel_fr"]["groups"]
    assert (group["enqueued"], group["completed"], group["issued"], group["ended"]) == (2, 1, 2, 1)
    assert contents.facts["complete"]


def test_only_so_many_calls_are_kept_as_the_ring_has_room_for(tmp_path: Path) -> None:
    rank = Rank(tmp_path, capacity=3)
    rank.show(*[gloo(number) for number in range(1, 9)])
    assert [record.record_id for record in rank.calls.records(since=6)] == [6, 7]
    assert [record.record_id for record in rank.calls.records()] == [5, 6, 7]
    assert rank.calls.ended(2) is None
    rank.reader.close()
    rank.writer.close()
