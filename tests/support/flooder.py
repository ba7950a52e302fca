"""Processes that flood a collector with new jobs that have dead ranks, in tenant team-a.

python -m tests.support.flooder ADDRESS NUMBER: send without a pause until killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import grpc

from tests.support import floods
from tests.support.collector_process import Collector
from tests.support.grpc_calls import LOGS
from tests.support.paths import ROOT
from tests.support.tokens import TEAM, bearer

_SECONDS = 60.0
"""Seconds after which a sender gives up a request and sends the next."""


@contextlib.contextmanager
def flooding(collector: Collector, senders: int) -> Iterator[None]:
    """Run ``senders`` processes. Each sends as fast as the collector takes its requests."""
    command = [sys.executable, "-m", "tests.support.flooder", collector.grpc]
    processes = [subprocess.Popen([*command, f"{number}"], cwd=ROOT) for number in range(senders)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _flood(address: str, sender: str) -> None:
    call = grpc.insecure_channel(address).unary_unary(LOGS, None, None)
    number = 0
    while True:
        number += 1
        data = floods.dead_jobs(number, f"team-a/{sender}-")
        with contextlib.suppress(grpc.RpcError):
            call(data, metadata=bearer(TEAM), compression=grpc.Compression.Gzip, timeout=_SECONDS)


if __name__ == "__main__":
    _flood(*sys.argv[1:])
