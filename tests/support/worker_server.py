"""A worker server on a Unix socket that answers like torch's C++ ``_WorkerServer``, with entries that a test makes.

The entries have the form of torch 2.13's ``dump_json`` (FlightRecorderDetail.hpp). As in torch, the begin of a call in
progress was always discovered just now, and the begin of a call that has ended was discovered with its end.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


def entry(number: int, **fields: Any) -> dict[str, Any]:
    """Return an NCCL all_reduce that was enqueued just now. ``number``: its number in group "0"."""
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "thread_name": "python",
        "thread_id": "1",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": time.time_ns(),
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **fields,
    }


def begun(number: int, **fields: Any) -> dict[str, Any]:
    return entry(number, **{"state": "started", **fields})


def ended(number: int, ms: float = 2.5, **fields: Any) -> dict[str, Any]:
    now = time.time_ns()
    times = {"time_discovered_started_ns": now, "time_discovered_completed_ns": now}
    return entry(number, **{"state": "completed", "retired": True, "duration_ms": ms, **times, **fields})


def answer(entries: list[dict[str, Any]]) -> bytes:
    found: dict[str, Any] = {"version": "2.10", "comm_lib_version": "", "pg_config": {}, "pg_status": {}}
    if entries:
        now = {"time_discovered_started_ns": time.time_ns()}
        found["entries"] = [{**item, **now} if item["state"] == "started" else item for item in entries]
    return json.dumps(found).encode()


class FakeWorkerServer:
    """A worker server.

    Attributes:
        body: the answer of ``dump_nccl_trace_json``.
        asked: paths of the requests.
    """

    def __init__(self) -> None:
        self.body: Callable[[], bytes] = lambda: answer([])
        self.asked: list[str] = []

    def show(self, *entries: dict[str, Any]) -> None:
        self.body = lambda: answer(list(entries))


@contextlib.contextmanager
def worker_server(path: Path) -> Iterator[FakeWorkerServer]:
    """Serve at the Unix socket ``path``."""
    server = FakeWorkerServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.asked.append(self.path)
            is_nccl = self.path.startswith("/handler/dump_nccl_trace_json?")
            self._send(server.body() if is_nccl else answer([]))

        def _send(self, body: bytes) -> None:
            with contextlib.suppress(OSError):  # the client has stopped waiting
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    class Listener(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Listener(str(path), Handler) as listener:
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            listener.shutdown()
