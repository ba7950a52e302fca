"""The gRPC side and the life of the process: start, serve, stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal as signals
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from otel_fr.control.v1 import control_pb2
from otel_fr_collector.control import Control, TooManyWatchersError
from otel_fr_collector.forward import METHODS
from otel_fr_collector.ingest import MalformedError
from otel_fr_collector.service import Outlets, Service
from otel_fr_collector.web import WebServer, make_app

_log = logging.getLogger(__name__)

MAX_MESSAGE = 64 * 1024 * 1024
"""Largest request, before and after decompression: the size OTLP recommends."""
STOP_SECONDS = 2.0
_Context = grpc.aio.ServicerContext[bytes, bytes]
_Export = Callable[[AsyncIterator[bytes], _Context], Awaitable[bytes]]
_Watch = Callable[[bytes, _Context], AsyncIterator[bytes]]

CONTROL_SERVICE = "otel_fr.control.v1.Control"


@dataclass(frozen=True)
class Address:
    """HOST:PORT; port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``127.0.0.1:4317``, ``[::1]:4317``, ``:4317`` (all interfaces).

        Raises:
            ValueError: it is of another form.
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host or "0.0.0.0", int(port))  # noqa: S104  an empty host is how people ask for all interfaces

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BindError(OSError):
    """An address cannot be listened on."""


def make_grpc_server(service: Service) -> grpc.aio.Server:
    """A server of the three OTLP services and of Control, not yet started.

    The OTLP methods are unary; they are served as streams of one request because that is the only way to see, and to
    count, a request that gRPC itself has refused as too large.
    """
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.so_reuseport", 0)])
    for name, method in METHODS.items():
        _, path, call = method.split("/")
        handler = grpc.stream_unary_rpc_method_handler(_export(service, name))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(path, {call: handler}),))
    watch = grpc.unary_stream_rpc_method_handler(_watch(service.control))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CONTROL_SERVICE, {"Watch": watch}),))
    return server


def _export(service: Service, name: str) -> _Export:
    async def handle(requests: AsyncIterator[bytes], context: _Context) -> bytes:
        async for data in requests:
            try:
                return await service.take(name, data)
            except MalformedError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Exception:  # noqa: BLE001  one client's odd data must not cost the others their collector
                service.metrics.errors.labels("ingest").inc()
                _log.exception("a request could not be taken in")
                await context.abort(grpc.StatusCode.INTERNAL, "the request could not be taken in")
        # No message came through: gRPC has refused it for its size, and has told the client so already.
        service.metrics.requests.labels(name, "too_large").inc()
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the request is larger than {MAX_MESSAGE} bytes")
        raise AssertionError("abort raises")

    return handle


def _watch(control: Control) -> _Watch:
    async def handle(data: bytes, context: _Context) -> AsyncIterator[bytes]:
        try:
            request = control_pb2.WatchRequest.FromString(data)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no WatchRequest")
        try:
            async with contextlib.aclosing(control.watch(request)) as commands:
                async for command in commands:
                    yield command
        except TooManyWatchersError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many monitors watch")

    return handle


class CollectorServer:
    """The whole collector in one event loop.

    Attributes:
        grpc_address, http_address: where it listens, once started.
    """

    def __init__(self, service: Service, outlets: Outlets, grpc_address: Address, http_address: Address) -> None:
        self.grpc_address = grpc_address
        self.http_address = http_address
        self._service = service
        self._outlets = outlets
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen and begin to judge.

        Raises:
            BindError: an address cannot be listened on.
        """
        listener = _listen(self.http_address)
        self.http_address = Address(self.http_address.host, listener.getsockname()[1])
        self._web = WebServer(make_app(self._service), listener)
        self._grpc = make_grpc_server(self._service)
        try:
            port = self._grpc.add_insecure_port(str(self.grpc_address))
        except RuntimeError as error:
            listener.close()
            raise BindError(f"cannot listen on {self.grpc_address}: {error}") from error
        self.grpc_address = Address(self.grpc_address.host, port)
        await self._grpc.start()
        self._web.start()
        if self._outlets.forward is not None:
            self._outlets.forward.start()
        self._outlets.start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._service.run()))

    async def serve(self) -> None:
        """Serve until SIGINT or SIGTERM, then stop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signals.SIGINT, signals.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        waiter = loop.create_task(_wait(stop))
        await asyncio.wait({waiter, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                _log.error("the collector cannot go on", exc_info=task.exception())
        await self.stop()

    async def stop(self) -> None:
        """Take nothing more in, judge and tell what is pending, end within a few seconds."""
        self._service.control.close()
        await self._grpc.stop(STOP_SECONDS / 2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._service.step(final=True)
        if self._outlets.forward is not None:
            await self._outlets.forward.stop(STOP_SECONDS)
        await self._outlets.stop(STOP_SECONDS)
        await self._web.stop()
        if self._outlets.file is not None:
            self._outlets.file.close()
        if self._service.store is not None:
            self._service.store.close()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BindError(f"cannot listen on {address}: {error}") from error
    return listener
