"""Costs of gRPC peers before Python sees anything of them: peers without a token, and very many peers."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from otel_fr_collector.receive import any_path
from otel_fr_collector.receive.grpc_server import CONNECTIONS_SHARE, MAX_STREAMS

from otel_fr.control.v1 import control_pb2
from tests.support import hostile_http2
from tests.support.collector_process import Collector, patched, running
from tests.support.grpc_calls import WATCH, stream
from tests.support.health import HealthWatch
from tests.support.hostile_http2 import END_HEADERS, END_STREAM, HEADERS, Attack
from tests.support.played_job import Job
from tests.support.tokens import OTHER_TEAM, Player, token_options
from tests.support.waiting import PATIENCE

MIB = 1 << 20
MOST_RESIDENT = 400 * MIB
MOST_LOG = 10_000
SLOWEST_ANSWER = 6.0
"""Limit for /healthz in seconds, on a busy machine. Such an attack once made it take 4 s."""
LATEST = 20.0
"""Limit in seconds from an attack's end to the alert of a job that hung at its start. Once it took 46 s."""
CHANNELS = 30
FILES = 240
"""Most files that the collector may have open here."""
ATTACKS: dict[Attack, tuple[int, int]] = {
    hostile_http2.header_references: (1, 5 * MIB),
    hostile_http2.rapid_reset: (4, 24 * MIB),
    hostile_http2.unread_answers: (2, 24 * MIB),
    hostile_http2.endless_headers: (4, 24 * MIB),
}
"""(connections, bytes of each): more than twice as much as once exceeded this test's memory limit."""


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.__name__)
def test_a_peer_without_a_token_neither_fills_the_memory_nor_keeps_out_a_job(tmp_path: Path, kind: Attack) -> None:
    connections, size = ATTACKS[kind]
    with (
        running(tmp_path, "--quiet", *token_options(tmp_path)) as collector,
        ThreadPoolExecutor() as pool,
        HealthWatch(collector).running() as watch,
        Job(Player(collector, OTHER_TEAM), 4, "team-b/light") as job,
    ):
        job.step()
        job.all_reported()
        attacks = [pool.submit(hostile_http2.attack, collector.grpc, kind, size) for _ in range(connections)]
        job.skip(2)
        assert all(one.result() for one in attacks)
        over = time.monotonic()
        collector.wait_cause()
        assert time.monotonic() - over < LATEST
        assert collector.resident() < MOST_RESIDENT, f"{collector.resident() / MIB:.0f} MiB"
        assert len(collector.said()) < MOST_LOG
    assert watch.latencies
    assert watch.slowest < SLOWEST_ANSWER


class Counting:
    """Sends a played job's requests, and counts refused and cancelled requests."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.lost = 0

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        try:
            return self._collector.send(method, data, **options)
        except grpc.RpcError as error:
            self.lost += error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED  # a busy machine may exceed the deadline
            raise


def test_no_control_stream_of_thousands_that_come_at_once_is_cancelled(tmp_path: Path) -> None:
    """No report of another job is cancelled, either."""
    with running(tmp_path, "--quiet") as collector, contextlib.ExitStack() as stack:
        sender = Counting(collector)
        job = stack.enter_context(Job(sender, 4))
        job.step()
        job.all_reported()
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(collector.grpc, own)) for _ in range(CHANNELS)]
        streams = [
            stream(channel, WATCH)(control_pb2.WatchRequest(job_id="j", run_id="r", rank=rank).SerializeToString())
            for channel in channels
            for rank in range(MAX_STREAMS)
        ]
        job.skip(2)
        for one in streams:
            one.initial_metadata()  # arrives when the stream is open, or has ended
        assert sum(one.is_active() for one in streams) == len(streams)
        assert collector.wait_cause()["culprit_ranks"] == [2]
        assert sender.lost == 0


def test_connections_over_grpc_leave_files_for_the_rest(tmp_path: Path) -> None:
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))"
    program = (sys.executable, "-c", limit + "; from otel_fr.cli import main; sys.exit(main())")
    with running(tmp_path, program=program) as collector, contextlib.ExitStack() as stack:
        host, _, port = collector.grpc.rpartition(":")
        clients = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(FILES)]
        assert sum(bool(client.recv(1)) for client in clients) <= FILES * CONNECTIONS_SHARE
        assert collector.get("/healthz") == "ok\n"


def ask_for_no_text(address: str) -> bytes:
    """Send a request with a path and a header that are no UTF-8. Return its answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(PATIENCE)
        block = hostile_http2.request(b"/otel\xff/Export") + hostile_http2.literal(b"x", b"a\xff")
        client.sendall(
            hostile_http2.PREFACE
            + hostile_http2.settings()
            + hostile_http2.frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
        )
        answer = b""
        while b"grpc-status" not in answer and (more := client.recv(1 << 16)):
            answer += more
        return answer


def test_a_path_that_is_no_text_ends_its_request_and_nothing_else(tmp_path: Path) -> None:
    with (
        running(tmp_path, *token_options(tmp_path)) as collector,
        Job(Player(collector, OTHER_TEAM), 2, "team-b/a") as job,
    ):
        job.step()
        assert b"Method not found" in ask_for_no_text(collector.grpc)
        with pytest.raises(grpc.RpcError) as caught:
            collector.send("/no.such.Service/Method", b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        job.skip(1)
        assert collector.wait_cause()["culprit_ranks"] == [1]
        assert "Traceback" not in collector.said()


@pytest.mark.skipif(not any_path.DECODES_IN_LOOP, reason="no request ends the server of this grpcio")
def test_a_collector_whose_grpc_port_has_closed_ends(tmp_path: Path) -> None:
    """Otherwise it would look healthy, and receive nothing."""
    with running(tmp_path, program=patched(receive__any_path__DECODES_IN_LOOP=0)) as collector:
        ask_for_no_text(collector.grpc)
        assert collector.process.wait(PATIENCE) == 1
        assert "internal error: the collector stops" in collector.said()


@pytest.mark.skipif(not any_path.DECODES_IN_LOOP, reason="no request ends the server of this grpcio")
def test_a_collector_on_a_grpcio_whose_inside_is_unknown_starts(tmp_path: Path) -> None:
    with running(tmp_path, program=patched(receive__any_path___Calls=0)) as collector, Job(collector, 2) as job:
        job.hang(1)
        assert collector.wait_cause()["culprit_ranks"] == [1]
        assert "this grpcio is unknown" in collector.said()
