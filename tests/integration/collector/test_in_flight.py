"""A tenant with incomplete requests in all slots of requests in flight does not keep out another tenant."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.collector_process import PROTOBUF, Collector, patched, running
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.otlp_messages import spans
from tests.support.tokens import OTHER_TEAM, READER, TEAM, bearer, token_options
from tests.support.waiting import wait_for

MAX_REQUESTS = 200
"""Replaces some thousands. A busy machine would take longer to open them than a request may take to arrive."""
COUNT = MAX_REQUESTS + 20
IN_FLIGHT = "otel_fr_collector_requests_in_flight"
REJECTED = "otel_fr_collector_requests_rejected_total"
GRPC_CONNECTIONS = COUNT // 100 + 1
"""Connections for the incomplete calls. A client opens no more than 100 calls on one connection."""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    program = patched(receive__intake__MAX_REQUESTS=MAX_REQUESTS)
    with running(tmp_path, "--quiet", *token_options(tmp_path), program=program) as found:
        found.authorization = f"Bearer {READER}"
        yield found


def check_that_another_tenant_is_served(collector: Collector) -> None:
    assert wait_for(lambda: collector.metric(IN_FLIGHT) >= MAX_REQUESTS)
    for number in range(3):
        data = spans(number)
        # A resource without a job id needs a token for all jobs. Here it only matters that the request is read.
        answer = collector.post("/v1/traces", data, Authorization=f"Bearer {OTHER_TEAM}")
        assert (answer.status, b"the token is for jobs" in answer.body) == (403, True), answer
        with pytest.raises(grpc.RpcError) as caught:
            collector.send(TRACES, data, metadata=bearer(OTHER_TEAM))
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED, caught.value
    assert sum(value for own, value in collector.samples(REJECTED) if own["reason"] == "gave_way") >= 1
    log = collector.err_file.read_text()
    assert log.count("in-flight limit reached: rejecting") == 1


def test_http_requests_sent_in_part_give_way_to_those_of_another_tenant(collector: Collector) -> None:
    host, _, port = collector.otlp_http.partition("//")[2].partition(":")
    head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nAuthorization: Bearer {TEAM}"
    with contextlib.ExitStack() as stack:
        for _ in range(COUNT):
            client = stack.enter_context(socket.create_connection((host, int(port))))
            client.sendall(f"{head}\r\nContent-Length: 100\r\n\r\n0123456789".encode())
        check_that_another_tenant_is_served(collector)


def test_grpc_calls_sent_in_part_give_way_to_those_of_another_tenant(collector: Collector) -> None:
    async def hold() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(collector.grpc, options=options) for _ in range(GRPC_CONNECTIONS)]
        calls = []
        for number in range(COUNT):
            method = channels[number % GRPC_CONNECTIONS].stream_unary(LOGS, None, None)
            calls.append(method(None, metadata=grpc.aio.Metadata(*bearer(TEAM))))
            await asyncio.sleep(0)
        await asyncio.to_thread(check_that_another_tenant_is_served, collector)
        codes = [await call.code() for call in calls if call.done()]
        assert grpc.StatusCode.UNAVAILABLE in codes
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close(None)

    asyncio.run(hold())
