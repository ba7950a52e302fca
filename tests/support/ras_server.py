"""A server with the documented protocol and JSON of NCCL's RAS, because there is no NCCL here."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

COMMUNICATOR = "0x7f8c496ae9f661"


def rank(number: int, pid: int, counts: Mapping[str, int] | None = None, **status: Any) -> dict[str, Any]:
    """Return a rank that answered. ``status``: keys that differ from a healthy rank's."""
    values = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": values | status,
        "collective_counts": {"AllGather": 0, "AllReduce": 120} | dict(counts or {}),
    }


def missing(number: int, pid: int, *, dead: bool = False) -> dict[str, Any]:
    """Return a rank that did not answer."""
    status = {"unresponsive": True, "considered_dead": dead}
    return {"rank": number, "host": "10.0.0.1", "pid": pid, "cuda_dev": number, "nvml_dev": number, "status": status}


def without_comma(text: str) -> str:
    """Return the answer as NCCL 2.28 writes it if a rank is missing."""
    return re.sub(r'("nvml_dev": \d+),(\s*"status": {\s*"unresponsive")', r"\1\2", text)


def communicator(
    ranks: Sequence[dict[str, Any]], lost: Sequence[dict[str, Any]] = (), size: int | None = None
) -> dict[str, Any]:
    size = len(ranks) + len(lost) if size is None else size
    return {
        "hash": COMMUNICATOR,
        "secondary_hash": "0x1:0x2",
        "size": size,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(lost),
        "ranks": list(ranks),
        "missing_ranks": list(lost),
    }


def answer(*communicators: dict[str, Any], timeouts: int = 0) -> str:
    """Return a complete answer."""
    value = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 12090,
        "timestamp": "2026-11-23 14:03:12",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.012, "timeouts_count": timeouts},
    }
    return json.dumps(value, indent=2) + "\n"


class RasServer:
    """A RAS server.

    Attributes:
        text: the answer to STATUS. diagnostics: the answer to DIAGNOSTICS; None: an error, as in NCCL before 2.31.
        knows_json: False: as in NCCL before 2.28.
        silent: so many connections get no answer, as from a stopped process.
        drop_seconds: if not 0, seconds between single bytes that it sends without a line's end. drops: their number.
        commands: the received commands.
    """

    def __init__(self) -> None:
        self.text = answer()
        self.diagnostics: str | None = None
        self.knows_json = True
        self.silent = 0
        self.drop_seconds = 0.0
        self.drops = 0
        self.commands: list[str] = []
        self.address = ("127.0.0.1", 0)


@contextlib.contextmanager
def ras_server() -> Iterator[RasServer]:
    state = RasServer()
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if state.silent:
                state.silent -= 1
                over.wait()
                return
            with contextlib.suppress(OSError):  # the client goes away
                while state.drop_seconds and not over.wait(state.drop_seconds):
                    self.wfile.write(b"x")
                    state.drops += 1
            for line in self.rfile:
                command = line.decode().strip()
                state.commands.append(command)
                if command.lower().startswith("client protocol "):
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                elif command.lower() == "status":
                    self.wfile.write(state.text.encode())
                    return  # RAS closes the connection
                elif command.lower() == "diagnostics" and state.diagnostics is not None:
                    self.wfile.write(state.diagnostics.encode())
                    return
                elif command.lower().startswith("timeout ") or (
                    state.knows_json and command.lower().startswith("set format ")
                ):
                    self.wfile.write(b"OK\n")
                else:
                    self.wfile.write(f"ERROR: Unknown command {command}\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        state.address = ("127.0.0.1", server.server_address[1])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield state
        finally:
            over.set()
            server.shutdown()
