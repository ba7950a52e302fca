"""Two ranks of a machine and their real monitors: what one sends for both, and the effect of its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_fr.control.v1.control_pb2 import Command, Incident, PeerFailed, WatchRequest
from otel_fr.monitor.control.siblings import MAX_PACKET
from tests.support.monitored_rank import Played, play
from tests.support.otlp_sink import Sink, grpc_sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    with grpc_sink(control=True) as opened:
        yield opened


def serves_both(request: WatchRequest) -> bool:
    return (request.rank, list(request.others)) == (0, [1])


@contextlib.contextmanager
def two_ranks(folder: Path, sink: Sink) -> Iterator[tuple[Played, Played]]:
    """Start two ranks. The first rank's monitor watches for both. At the end, both are killed, which is faster."""
    (folder / "rings").mkdir()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "RINGS": str(folder / "rings"), "OTEL_FR_STALL_SECONDS": "1000"}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(play(folder / "0", {**env, "RANK": "0"}))
        sink.wait(lambda: sink.watchers, what="a monitor that listens")
        second = stack.enter_context(play(folder / "1", {**env, "RANK": "1"}))
        sink.wait(lambda: any(map(serves_both, sink.updates)), what="a stream for both")
        try:
            yield first, second
        finally:
            for rank in (first, second):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.monitor, signal.SIGKILL)


SIZE = 500_000
"""Bytes of a large command."""


def kill_rank(rank: Played) -> None:
    rank.process.kill()


def kill_monitor(rank: Played) -> None:
    os.kill(rank.monitor, signal.SIGKILL)


@pytest.mark.parametrize("fault", [kill_rank, kill_monitor])
def test_a_failure_is_told_to_the_others_when_it_takes_the_watcher_along(
    fault: Callable[[Played], None], tmp_path: Path, sink: Sink
) -> None:
    """A real collector repeats failures to each new watcher. This one reports the failure once."""
    with two_ranks(tmp_path, sink) as (first, _):
        fault(first)
        failed = Command(peer_failed=PeerFailed(ranks=[0], reason="rank 0 was killed", kind="ended"))
        if fault is kill_monitor:
            sink.wait(lambda: len(sink.watchers) == 2, what="another watcher")
        sink.commands.put(failed)
        told = sink.event("torch.rank.peer_failed")
        assert told.resource["torch.rank"] == 1


def shared_requests(sink: Sink) -> list[int]:
    """Return the numbers of requests in which both ranks report their progress."""
    ranks: dict[int, set[int]] = {}
    for event in sink.named("torch.rank.progress"):
        ranks.setdefault(event.request, set()).add(event.resource["torch.rank"])
    return [number for number, found in ranks.items() if found == {0, 1}]


def test_the_ranks_of_a_machine_report_their_progress_in_one_request(tmp_path: Path, sink: Sink) -> None:
    """A machine that delays one monitor separates their reports, but not for long."""

    def report_only_together() -> bool:
        requests = [one.request for one in sink.named("torch.rank.progress")]
        pairs = itertools.pairwise(shared_requests(sink))
        return any(sum(before < one <= last for one in requests) == 2 for before, last in pairs)

    with two_ranks(tmp_path, sink):
        sink.wait(report_only_together, what="progress of both ranks together, and of neither between")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_reports_on_its_own_when_its_machines_watcher_is_gone(
    sent: signal.Signals, tmp_path: Path, sink: Sink
) -> None:
    with two_ranks(tmp_path, sink) as (first, _):
        sink.wait(lambda: shared_requests(sink), what="progress of both ranks together")
        os.kill(first.monitor, sent)
        known = sink.requests
        reports = sink.wait(
            lambda: [one for one in sink.named("torch.rank.progress") if one.request > known + 1],
            what="progress of the second rank",
        )
        assert {one.resource["torch.rank"] for one in reports} == {1}


def test_commands_that_a_sibling_does_not_take_are_in_the_watchers_report(tmp_path: Path, sink: Sink) -> None:
    with two_ranks(tmp_path, sink) as (_, second):
        os.kill(second.monitor, signal.SIGSTOP)
        for _ in range(8 * MAX_PACKET // SIZE):
            sink.commands.put(Command(incident=Incident(incident_id="i", summary="x" * SIZE, is_over=True)))
        report = sink.event("torch.rank.progress", where=lambda report: report.get("dropped", {}).get("commands"))
        assert report.resource["torch.rank"] == 0
