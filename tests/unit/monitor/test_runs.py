"""The runs of one process: what each call is counted for, however late or seldom the monitor looks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.capture.runs import MAX_EARLIER, Runs
from otel_fr.config import Config
from otel_fr.control.v1.control_pb2 import Command, PeerFailed
from otel_fr.monitor.commands import Commands
from otel_fr.monitor.control.pace import Inbox
from otel_fr.monitor.nccl.recorder_entries import parse_answer
from otel_fr.monitor.telemetry.call_ranges import reported_range
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import ReportedGroup, parse
from otel_fr.ring import GroupDef, RecordState
from tests.support.followed_ring import FollowedRing
from tests.support.otlp_messages import attributes
from tests.support.rings import float_signature
from tests.support.worker_server import answer, ended

GROUP = identity.group_id("0", (0, 1))


def run_of(number: int) -> dict[str, object]:
    """The ranks change places in each."""
    return {"rank": number % 2, "world_size": 2, "job_id": "j", "nonce": str(number), "run_id": f"run {number}"}


class Process(FollowedRing):
    """A ring whose process is a rank of one run after the other, and the reporter of its monitor once that looks."""

    def __init__(self, folder: Path) -> None:
        self.number = 0
        self.meta: dict[str, object] = run_of(0)
        self.runs = Runs(self.meta)
        super().__init__(folder, 1000, self.meta)
        self.exporter = Exporter(Mock(), Mock())
        self.groups: dict[tuple[str, int], tuple[ReportedGroup, ...]] = {}
        self.reports: dict[tuple[str, int], int] = {}
        """Number of the latest report, by run and rank."""
        self.group = self.created()

    def created(self) -> int:
        return self.writer.add_group(GroupDef(GROUP, "0", "default_pg", (0, 1), "gloo", self.number))

    def go_on(self) -> None:
        """All groups are destroyed, and the default group is created again."""
        self.writer.remove_group(self.group)
        self.number += 1
        errors = self.writer.counted("hook_errors")
        self.meta |= self.runs.following(run_of(self.number), self.writer.head, errors)
        self.writer.set_meta(self.meta)
        self.group = self.created()

    def call(self, count: int, *, ends: bool = True) -> None:
        for number in range(1, count + 1):
            call = self.append(self.group, 1_000 * number, number=number)
            if ends:
                self.writer.complete(*call, RecordState.COMPLETED, 1_000 * number + 1)

    def call_device(self) -> None:
        """The first call of a group of NCCL's: PyTorch's recorder shows its end, not the ring."""
        call = self.append(self.group, time.monotonic_ns(), float_signature(backend="nccl"), number=1)
        self.writer.complete(*call, RecordState.UNKNOWN, 0)

    def monitor(self) -> Reporter:
        reporter = Reporter(self.reader, Config.from_env({}), self.exporter)
        reporter.begin()
        return reporter

    def spans(self) -> Mapping[tuple[str, int], int]:
        """How many have been sent, by run and rank."""
        found: Counter[tuple[str, int]] = Counter()
        while self.exporter.spans:
            count, _, resource = self.exporter.spans.take()
            found[whose(resource)] += count
        return found

    def events(self) -> list[tuple[str, tuple[str, int]]]:
        """The names of what has been sent, with run and rank."""
        found = []
        while taken := self.exporter.reports.take():
            found += [(one.record.event_name, whose(one.resource)) for one in taken]
            for one in taken:
                report = parse(one.record.body.string_value)
                self.groups[whose(one.resource)], self.reports[whose(one.resource)] = report.groups, report.number
        return found


def whose(resource: Resource | None) -> tuple[str, int]:
    assert resource is not None
    found = attributes(resource.attributes)
    return str(found["torch.run.id"]), int(str(found["torch.rank"]))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with closing(Process(tmp_path)) as process:
        yield process


def test_a_monitor_that_starts_later_counts_each_call_for_the_run_it_was_made_in(process: Process) -> None:
    """The group has the same id in both, so calls of the run before would look like calls of the new rank."""
    process.call(2)
    process.go_on()
    process.call(1, ends=False)
    reporter = process.monitor()
    assert process.spans() == {("run 0", 0): 2}
    assert process.events() == [("torch.rank.exited", ("run 0", 0)), ("torch.rank.started", ("run 1", 1))]
    progress = {who: (group.enqueued, group.completed, group.is_destroyed) for who, (group,) in process.groups.items()}
    assert progress == {("run 0", 0): (2, 2, True), ("run 1", 1): (1, 0, False)}
    fetched = reported_range(process.reader, GROUP, 1, 2, 10**9).calls
    assert [(call.sequence, call.state) for call in fetched] == [(1, "scheduled")]
    assert reporter.situation(10**9).oldest_since_ns is not None


def test_an_error_of_recording_counts_only_in_its_own_run(process: Process) -> None:
    process.writer.count("hook_errors")
    reporter = process.monitor()
    assert reporter.dropped().hook_errors == 1
    process.go_on()
    reporter.follow()
    assert reporter.dropped().hook_errors == 0
    process.writer.count("hook_errors", 2)
    assert reporter.dropped().hook_errors == 2


def test_a_peer_that_failed_in_the_run_before_has_not_failed_in_the_next(process: Process) -> None:
    """It has another number there. The collector's command waits while the process enters the next run."""
    reporter, inbox, link, node = process.monitor(), Inbox(), Mock(), Mock(running=list)
    given = reporter, link, Config(), Mock(), Mock(), Mock(node=node), Mock()
    commands = Commands(Mock(inbox=inbox), *given)
    failed = Command(peer_failed=PeerFailed(ranks=[0, 1], kind="ended"))
    inbox.put(failed, 1, "run 0")
    process.go_on()
    process.call(1, ends=False)
    reporter.follow()
    reporter.run.groups.refresh()
    commands.step(10**10)
    link.send.assert_not_called()
    inbox.put(failed, 1, "run 1")
    commands.step(10**10)
    assert link.send.call_args.args[0]["ranks"] == "0"


def test_runs_that_pass_between_two_looks_at_the_ring_are_told_apart(process: Process) -> None:
    reporter = process.monitor()
    process.call(1)
    process.go_on()
    process.call(2)
    process.go_on()
    process.call(3)
    reporter.follow()
    assert process.spans() == {("run 0", 0): 1, ("run 1", 1): 2, ("run 2", 0): 3}
    assert [who for event, who in process.events() if event == "torch.rank.exited"] == [("run 0", 0), ("run 1", 1)]


def test_the_reports_of_each_run_are_numbered_from_one(process: Process) -> None:
    """A collector takes a run whose first report has a high number for one that was running before its own start."""
    reporter = process.monitor()
    for _ in range(5):
        reporter.send(names.EVENT_PROGRESS)
    process.go_on()
    reporter.follow()
    process.events()
    assert process.reports == {("run 0", 0): 7, ("run 1", 1): 1}


def test_calls_of_runs_that_are_not_known_any_more_are_counted_for_none(process: Process) -> None:
    reporter = process.monitor()
    for _ in range(MAX_EARLIER + 3):
        process.call(1)
        process.go_on()
    process.call(5)
    reporter.follow()
    last = process.number
    expected = {(f"run {number}", number % 2): 1 for number in range(last - MAX_EARLIER, last)}
    assert process.spans() == {**expected, (f"run {last}", last % 2): 5}
    assert ("torch.rank.exited", ("run 0", 0)) in process.events()


def test_a_call_whose_end_was_not_shown_before_the_run_ended_is_no_call_of_the_next(process: Process) -> None:
    """The recorder is asked once a second, and would show it while the next run waits for its own first call."""
    reporter = process.monitor()
    reporter.devices.is_read = True
    process.call_device()
    reporter.follow()
    process.go_on()
    reporter.follow()
    assert process.spans() == {("run 0", 0): 1}
    asked = time.monotonic_ns()
    reporter.devices.note(parse_answer(answer([ended(1, ms=7.5)]))[0], asked, time.time_ns() - asked)
    reporter.follow()
    reporter.send(names.EVENT_PROGRESS)
    process.events()
    progress = {who: (group.enqueued, group.completed) for who, (group,) in process.groups.items()}
    assert progress == {("run 0", 0): (1, 0), ("run 1", 1): (0, 0)}
    assert not process.spans()


def test_a_report_of_a_run_that_has_just_ended_has_no_counts_of_the_next(process: Process) -> None:
    """The process enters the next run between the monitor's look at the ring and its report."""
    reporter = process.monitor()
    process.call(3)
    reporter.follow()
    reporter.send(names.EVENT_PROGRESS)
    process.go_on()
    process.call(1, ends=False)
    reporter.send(names.EVENT_PROGRESS)
    assert {who for _, who in process.events()} == {("run 0", 0)}
    assert [(group.enqueued, group.is_destroyed) for group in process.groups[("run 0", 0)]] == [(3, False)]
    reporter.follow()
    process.events()
    progress = {who: (group.enqueued, group.is_destroyed) for who, (group,) in process.groups.items()}
    assert progress == {("run 0", 0): (3, True), ("run 1", 1): (1, False)}
