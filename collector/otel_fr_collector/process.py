"""The collector's process: start, serve, stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal as signals
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import NoReturn

import grpc.aio
from starlette.applications import Starlette

from otel_fr_collector.ending import Ending
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.garbage import NEW_SECONDS, GarbageCollection
from otel_fr_collector.incidents.judge import Judge
from otel_fr_collector.network.address import Address, BindError, listen
from otel_fr_collector.network.http_server import HttpServer
from otel_fr_collector.network.tls import ServerTls
from otel_fr_collector.network.tokens import CHECK_SECONDS, Tokens
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.receive.grpc_server import make_grpc_server
from otel_fr_collector.receive.intake import Intake, Limits
from otel_fr_collector.receive.otlp_http import make_otlp_app
from otel_fr_collector.service import Service
from otel_fr_collector.web.app import make_app
from otel_fr_collector.web.finished import Finished

_log = logging.getLogger(__name__)

REQUESTS_UNTIL, VERDICTS_UNTIL, SENDING_UNTIL = 0.2, 0.65, 0.85
"""Shares of the time to stop after which requests in flight, judging and sending end. The rest is for files."""
LEAST_SENDING = 0.1
"""Seconds left for sending even if the steps before have used up the time."""
SWITCH_INTERVAL = 0.000_5
"""Seconds for which another thread may keep the interpreter from the event loop. Python's default is 5 ms."""
MALLOC_OPTIONS = {-3: 1 << 20, -8: 2}
"""Parameters of glibc's mallopt: M_MMAP_THRESHOLD and M_ARENA_MAX. Requests of megabytes get memory of their own, which
returns to the system when they end. By default, glibc stops doing so after the first, and keeps an arena for each
thread."""

TRIM_SECONDS = 60.0
"""Seconds between two returns of free memory to the system. Returning 150 MB takes 30 ms."""


@dataclass(frozen=True)
class Ports:
    """Where the collector listens, and how.

    Attributes:
        otlp_http: None: no OTLP over HTTP.
        needs_otlp_http: False: if its port is taken, the collector logs this and continues without OTLP over HTTP.
    """

    grpc: Address
    http: Address
    otlp_http: Address | None = None
    needs_otlp_http: bool = True
    tls: ServerTls | None = None
    tokens: Tokens | None = None
    limits: Limits = field(default_factory=Limits)


class CollectorProcess:
    """All parts of the collector, in one event loop.

    Args:
        stop_seconds: longest time that `stop` may take.

    Attributes:
        ports: where the collector listens; after `start`, with the port numbers that it got.
    """

    def __init__(
        self,
        service: Service,
        outlets: Outlets,
        forwarder: Forwarder | None,
        ports: Ports,
        stop_seconds: float,
    ) -> None:
        self.ports = ports
        self._service = service
        self._outlets = outlets
        self._forwarder = forwarder
        self._ending = Ending(stop_seconds)
        self._webs: list[HttpServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._signalled = asyncio.Event()

    async def start(self) -> None:
        """Listen on the ports and start judging. Signals are handled from now on.

        Raises:
            BindError: an address cannot be listened on.
        """
        self._take_signals()
        ports = self.ports
        intake = Intake(self._service, ports.limits, ports.tokens)
        finished = Finished(self._service)
        http = self._listen(ports.http, make_app(self._service, ports.tokens, finished))
        otlp_http = None
        if ports.otlp_http is not None:
            try:
                otlp_http = self._listen(ports.otlp_http, make_otlp_app(intake))
            except BindError as error:
                if ports.needs_otlp_http:
                    raise
                _log.warning("OTLP over HTTP is off: %s; set --otlp-http to another port, or to off", error)
        self._grpc = make_grpc_server(self._service.control, self._service.attribution, intake)
        try:
            if ports.tls is not None:
                port = self._grpc.add_secure_port(str(ports.grpc), ports.tls.grpc_credentials())
            else:
                port = self._grpc.add_insecure_port(str(ports.grpc))
        except RuntimeError as error:
            raise BindError(f"cannot listen on {ports.grpc}: {error}") from error
        self.ports = replace(ports, grpc=Address(ports.grpc.host, port), http=http, otlp_http=otlp_http)
        await self._service.begin()
        await self._grpc.start()
        for web in self._webs:
            web.start()
        if self._forwarder is not None:
            self._forwarder.start()
        self._outlets.start()
        _tune_interpreter()
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(self._service.run()), loop.create_task(finished.run())]
        self._tasks.append(loop.create_task(_watch(self._grpc)))
        if self._service.store is not None and self._service.store.is_shared:
            self._tasks.append(loop.create_task(finished.show()))
        self._tasks.append(loop.create_task(_collect_garbage(self._service.judge)))
        self._tasks.append(loop.create_task(_return_memory()))
        if ports.tokens is not None:
            self._tasks.append(loop.create_task(_end_revoked(ports.tokens)))

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        numbers = [signals.SIGINT, signals.SIGTERM]
        if signals.getsignal(signals.SIGHUP) is not signals.SIG_IGN:  # nohup
            numbers.append(signals.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled.set)
            # Replaces asyncio's handler, which does nothing: the loop may be too busy to see the signal soon.
            signals.signal(number, lambda *_: self._ending.begin())

    def _listen(self, address: Address, app: Starlette) -> Address:
        listener = listen(address)
        self._webs.append(HttpServer(app, listener, self.ports.tls, self.ports.limits.client_connections))
        return Address(address.host, listener.getsockname()[1])

    async def serve(self) -> bool:
        """Serve until SIGINT, SIGTERM or SIGHUP, then stop. Return False if an internal error was the reason."""
        waiter = asyncio.get_running_loop().create_task(_wait(self._signalled))
        await asyncio.wait({waiter, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        is_well = True
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                _log.error("internal error: the collector stops", exc_info=task.exception())
                is_well = False
        await self.stop()
        return is_well

    async def stop(self) -> None:
        """Stop accepting requests, judge and publish what is pending, send what is queued, within the time to stop."""
        left = self._ending.left
        self._service.control.close()
        until = left(REQUESTS_UNTIL)
        await asyncio.gather(self._grpc.stop(until), *(web.stop(until) for web in self._webs[1:]))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._service.finish(left(VERDICTS_UNTIL))
        until = max(LEAST_SENDING, left(SENDING_UNTIL))
        senders: list[Awaitable[None]] = [self._webs[0].stop(until), self._outlets.stop(until)]
        if self._forwarder is not None:
            senders.append(self._forwarder.stop(until))
        await asyncio.gather(*senders)
        if self._forwarder is not None:
            await self._forwarder.close(left() / 2)
        if self._service.store is not None:
            self._service.store.close(time.monotonic() + left() / 2)
            if self._service.store.ends is not None:
                await self._service.store.ends.close(left() / 2)


def _tune_interpreter() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL)
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        for parameter, value in MALLOC_OPTIONS.items():
            ctypes.CDLL(None).mallopt(parameter, value)


async def _collect_garbage(judge: Judge) -> None:
    garbage = GarbageCollection(time.monotonic())
    while True:
        await asyncio.sleep(NEW_SECONDS)
        now = time.monotonic()
        garbage.step(now, is_busy=judge.is_due_soon(now))


async def _return_memory() -> None:
    """Return free memory to the system. glibc does not, because the memory lies between blocks that gRPC holds."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        with contextlib.suppress(AttributeError):  # another C library than glibc
            await asyncio.to_thread(ctypes.CDLL(None).malloc_trim, 0)


async def _end_revoked(tokens: Tokens) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        tokens.end_revoked()


async def _watch(server: grpc.aio.Server) -> NoReturn:
    """Wait until the server ends. A collector without it must not look healthy, so the process ends and is restarted.

    Raises:
        RuntimeError: the server has ended.
    """
    await server.wait_for_termination()
    raise RuntimeError("the gRPC server has ended")


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
