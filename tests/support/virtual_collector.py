"""The collector without a process and ports, on virtual time: a test plays a minute of a job in a second."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlsplit

import grpc
from otel_fr_collector.control import Watcher
from otel_fr_collector.forward import backends as clients
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.forward.selection import Selection
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_server import HttpServer
from otel_fr_collector.otlp.signals import METHODS, TRACES
from otel_fr_collector.outlets.file import IncidentsFile
from otel_fr_collector.outlets.outlet import Outlet
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.outlets.terminal import Terminal
from otel_fr_collector.receive.intake import Intake
from otel_fr_collector.receive.rejections import RejectedError
from otel_fr_collector.service import TICK, Service
from otel_fr_collector.storage.journal import Journal
from otel_fr_collector.storage.store import Store
from otel_fr_collector.web.app import make_app
from otel_fr_collector.web.finished import Finished

from otel_fr.control.v1 import control_pb2
from otel_fr.incident import CollectorIncidentData
from tests.support.collector_view import Answer, CollectorView
from tests.support.otlp_backends import Backend, MemoryBackend
from tests.support.stores import sqlite_store
from tests.support.times import VirtualTime
from tests.support.waiting import PATIENCE

_T = TypeVar("_T")

REQUEST_SECONDS = 0.001
"""Virtual time that a request takes, so that no two things happen at once."""
_SIGNALS = {method: signal for signal, method in METHODS.items()}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_HOST = "collector:8080"


class Refused(grpc.RpcError):
    """The error of a refused request, as a client of the gRPC port gets it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class _Memory:
    """Keeps published changes, in place of the file of ``--incidents``."""

    problem = ""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, data: CollectorIncidentData) -> None:
        self.lines.append(json.dumps(data))

    def close(self) -> None:
        pass


class Monitor:
    """The control stream of one rank's monitor."""

    def __init__(self, collector: VirtualCollector, watcher: Watcher) -> None:
        self._collector = collector
        self._commands = watcher.__aiter__()

    def next_command(self) -> control_pb2.Command:
        """Return the next command. It must have been sent."""

        async def take() -> bytes:
            return await asyncio.wait_for(self._commands.__anext__(), PATIENCE)

        return control_pb2.Command.FromString(self._collector.do(take()))

    def others(self) -> list[bytes]:
        """Return all further commands, once the stream has ended."""

        async def take() -> list[bytes]:
            return [command async for command in self._commands]

        return self._collector.do(take())


async def _reached(backends: Sequence[Backend]) -> list[clients.Backend]:
    """Return clients for these backends. Call in the event loop that will run them."""
    tls = clients.Tls()
    return [one if isinstance(one, MemoryBackend) else clients.make_backend(one.url, tls, {}) for one in backends]


class VirtualCollector(CollectorView):
    """A collector in this process. It takes requests in place of the gRPC port.

    Args:
        on: the time on which it runs; None: its own.
        data: the folder of its store; None: it has no store.
        forward: backends that get the requests of ``signals``.
        queue_size: most bytes that wait for a backend.
        selects: backends get only the traces of incidents.
        outlets: makes further outlets. alert_after: as in `IncidentBook`.
    """

    time: VirtualTime
    http: str

    def __init__(
        self,
        on: VirtualTime | None = None,
        *,
        data: Path | None = None,
        forward: Sequence[Backend] = (),
        queue_size: int = 1 << 26,
        signals: frozenset[str] = frozenset({TRACES}),
        selects: bool = False,
        outlets: Callable[[Metrics, Store | None], Sequence[Outlet]] = lambda _, __: (),
        alert_after: float = 0.0,
    ) -> None:
        self.time = on or VirtualTime()
        self._loop = asyncio.new_event_loop()
        self._memory, self._terminal = _Memory(), io.StringIO()
        self._contexts = contextlib.ExitStack()
        metrics = Metrics()
        self.store = None
        if data is not None:
            data.mkdir(exist_ok=True)
            self.store = sqlite_store(data, metrics, wall=self.time.wall, clock=self.time.monotonic)
        self._memories = [one for one in forward if isinstance(one, MemoryBackend)]
        self._forwarder = None
        if forward:
            journal = None if data is None else Journal(data / "forward.sqlite3", metrics)
            backends = self.do(_reached(forward))
            self._queues = Queues([one.name for one in backends], queue_size, journal)
            selection = Selection(self.time.monotonic) if selects else None
            self._forwarder = Forwarder(self._queues, backends, metrics, signals=signals, selection=selection)
        self.service = Service(
            metrics,
            Outlets(
                metrics,
                terminal=Terminal(self._terminal),
                file=cast("IncidentsFile", self._memory),
                others=list(outlets(metrics, self.store)),
            ),
            self.time.monotonic,
            self.time.wall,
            forwarder=self._forwarder,
            store=self.store,
            alert_after=alert_after,
        )
        self._intake = Intake(self.service, clock=self.time.monotonic)
        self._finished = Finished(self.service)
        self._app = make_app(self.service, finished=self._finished)
        self.do(self._start())
        self._contexts.callback(self.time.every(TICK, lambda: self.do(self._step())))

    def do(self, work: Awaitable[_T]) -> _T:
        """Do work in the collector's event loop, and return the result."""

        async def await_it() -> _T:
            return await work

        if self._loop.is_running():
            return asyncio.run_coroutine_threadsafe(await_it(), self._loop).result(PATIENCE)
        return self._loop.run_until_complete(await_it())

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answer other programs at `http` during the block."""

        async def start() -> HttpServer:
            server = HttpServer(self._app, listener)
            server.start()
            return server

        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.http = f"http://127.0.0.1:{listener.getsockname()[1]}"
            server = self.do(start())
            thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            runs = threading.Event()
            self._loop.call_soon(runs.set)
            thread.start()
            runs.wait(PATIENCE)
            try:
                yield
            finally:
                self.service.outlets.event_stream.close()
                self.do(server.stop(PATIENCE))
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join(PATIENCE)

    async def _start(self) -> None:
        await self.service.begin()
        self._tasks = [asyncio.create_task(self._finished.run())]
        if self._forwarder is not None:
            self._forwarder.start()
        self.service.outlets.start()

    async def _step(self) -> None:
        while not self.service.step() or self.service.judge._aside:
            await asyncio.sleep(0)
        await self._finished.all_kept()
        # Threads that write files run on the machine's time.
        while any(self._queues.waiting[one.name] for one in self._memories if not one.is_down):
            await asyncio.sleep(0)
        if self.store is not None:
            self.store.settled(PATIENCE)

    def deliver(self, look: Callable[[], object]) -> None:
        """Let time pass until ``look`` returns a true value. Receivers of outlets run on the machine's time."""
        end = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < end, self.said()
            self.time.advance(TICK)
            self.do(asyncio.sleep(0.005))

    def __enter__(self) -> VirtualCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop all work at once. Writes that have begun are finished."""
        self._contexts.close()
        if not self._loop.is_closed():
            self.do(self._end())
            self._loop.close()
        if self.store is not None:
            self.store.settled(PATIENCE)
            self.store.close()

    async def _end(self) -> None:
        if self.store is not None and self.store.ends is not None:
            await self.store.ends.close(PATIENCE)
        if self._forwarder is not None:
            await self._forwarder.close(PATIENCE)
            await asyncio.sleep(0)  # the store notes what is in the queue's file
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Stop as on a signal: judge, publish and send what is pending."""
        self.do(self._finish())
        self.kill()

    async def _finish(self) -> None:
        await self.service.finish(PATIENCE)
        await self.service.outlets.stop(PATIENCE)
        if self._forwarder is not None:
            await self._forwarder.stop(PATIENCE)

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        if self._loop.is_closed():
            raise Refused(grpc.StatusCode.UNAVAILABLE)
        self.time.take(REQUEST_SECONDS)
        try:
            return self.do(self._take(_SIGNALS[method], data))
        except RejectedError as error:
            raise Refused(_CODES[error.code]) from error

    async def _take(self, signal: str, data: bytes) -> bytes:
        with self._intake.admit("ipv4:127.0.0.1", "", signal) as request:
            request.hold(len(data))
            return await self._intake.take(request, signal, data)

    def fetch(self, path: str, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.do(self._fetch(path, {"host": _HOST, **given}))

    async def _fetch(self, path: str, headers: dict[str, str]) -> Answer:
        parts = urlsplit(path)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": parts.path, "raw_path": quote(parts.path).encode(), "query_string": parts.query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "root_path": "",
        }  # fmt: skip
        answer = Answer(0, {}, b"")

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self._app(scope, receive, send)
        return answer

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._memory.lines]

    def printed(self) -> str:
        """Return the text on the collector's terminal."""
        return self._terminal.getvalue()

    def said(self) -> str:
        return self.printed()

    def watch(self, job: Any, rank: int = 0) -> Monitor:
        """Open the control stream of a monitor of a played job."""
        request = control_pb2.WatchRequest(job_id=job.id, attempt=job.attempt, run_id=job.run, rank=rank)
        return Monitor(self, self._contexts.enter_context(self.service.control.watch(request)))
