"""Two tenants over TLS: what one does to the ports costs the other no incident."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import grpc
from otel_fr_collector.receive.grpc_server import MAX_STREAMS

from otel_fr.control.v1 import control_pb2
from tests.support.certificates import Certificates
from tests.support.collector_process import running
from tests.support.grpc_calls import WATCH, stream, unary
from tests.support.played_job import Job
from tests.support.tokens import OTHER_TEAM, TEAM, bearer, token_options

STALLED = 400
"""TLS handshakes on each port that begin and do not continue."""
CHANNELS = 20
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of one (RFC 8446, 4.1.2)."""


class Tenant:
    """Sends a played job's requests over a channel, with its token."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return unary(self._channel, method)(data, metadata=bearer(OTHER_TEAM), **options)


def test_stalled_handshakes_and_streams_of_one_tenant_keep_no_incident_of_another(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    options = ("--quiet", *certificates.server_options(), *token_options(tmp_path))
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(running(tmp_path, *options, tls=certificates.context()))
        for address in (collector.grpc, collector.http.partition("://")[2]):
            host, _, port = address.rpartition(":")
            for _ in range(STALLED):
                stack.enter_context(socket.create_connection((host, int(port)))).sendall(CLIENT_HELLO)
        place = collector.grpc.replace("127.0.0.1", "localhost")
        streams = []
        for number in range(CHANNELS):
            watch = stream(stack.enter_context(certificates.channel(place)), WATCH)
            for rank in range(MAX_STREAMS):
                request = control_pb2.WatchRequest(job_id=f"team-a/{number}", run_id="r", rank=rank)
                streams.append(watch(request.SerializeToString(), metadata=bearer(TEAM)))
        with Job(Tenant(stack.enter_context(certificates.channel(place))), 4, "team-b/light") as job:
            job.step()
            job.skip(2)
            assert collector.wait_cause()["culprit_ranks"] == [2]
        assert sum(one.is_active() for one in streams) == len(streams)
        assert collector.get("/healthz") == "ok\n"
