"""The gRPC side and the life of the process: start, serve, stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal as signals
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
from starlette.applications import Starlette

from otel_fr.control.v1 import control_pb2
from otel_fr_collector.control import Control, TooManyWatchersError
from otel_fr_collector.network.tls import ServerTls
from otel_fr_collector.network.tokens import Tokens
from otel_fr_collector.otlp import envelope as otlp
from otel_fr_collector.otlp.envelope import METHODS
from otel_fr_collector.receive.inflate import Inflater, encoding_of
from otel_fr_collector.receive.intake import READ_SECONDS, Call, Intake, Limits, RejectedError
from otel_fr_collector.receive.otlp_http import make_otlp_app
from otel_fr_collector.service import Outlets, Service
from otel_fr_collector.settings import Address
from otel_fr_collector.web.app import WebServer, make_app

_log = logging.getLogger(__name__)

STOP_SECONDS = 10.0
STOP_RESERVE = 1.0
"""Of the time to stop, what is kept for closing files and connections."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_Context = grpc.aio.ServicerContext[bytes, bytes]
_Export = Callable[[AsyncIterator[bytes], _Context], Awaitable[bytes]]
_Watch = Callable[[bytes, _Context], AsyncIterator[bytes]]

CONTROL_SERVICE = "otel_fr.control.v1.Control"


class BindError(OSError):
    """An address cannot be listened on."""


def make_grpc_server(service: Service, intake: Intake, max_connection_age: float = 3_600.0) -> grpc.aio.Server:
    """A server of the three OTLP services and of Control, not yet started.

    The OTLP methods are unary; they are served as streams of one request because that is the only way to see, and to
    count, a request that gRPC itself has refused as too large.

    Args:
        max_connection_age: seconds after which a client is asked to connect anew: new certificates, tokens and
            backends of a load balancer come into force then.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", intake.limits.max_request_size),
            # Before 1.85 gRPC unfolds a message completely before it looks at its size (tried with 1.63 to 1.83).
            ("grpc.per_message_decompression", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_age_ms", int(max_connection_age * 1000)),
            ("grpc.max_connection_age_grace_ms", 30_000),
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.keepalive_time_ms", 60_000),  # finds clients whose host has gone
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]
    )
    for name, method in METHODS.items():
        _, path, call = method.split("/")
        handler = grpc.stream_unary_rpc_method_handler(_export(intake, name))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(path, {call: handler}),))
    watch = grpc.unary_stream_rpc_method_handler(_watch(service.control, intake))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CONTROL_SERVICE, {"Watch": watch}),))
    return server


def _export(intake: Intake, name: str) -> _Export:
    async def handle(requests: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            with intake.call(_client(context), _authorization(context), name) as call:
                try:
                    data = await asyncio.wait_for(anext(requests), READ_SECONDS)
                except StopAsyncIteration:
                    # No message came through: gRPC has refused it for its size, and has told the client so already.
                    raise intake.too_large(name) from None
                except asyncio.TimeoutError:
                    raise RejectedError(otlp.DEADLINE_EXCEEDED, "the request came too slowly") from None
                return await intake.take(call, name, await _unpack(call, data))
        except RejectedError as error:
            await _abort(context, error)
        raise AssertionError("abort raises")

    return handle


def _watch(control: Control, intake: Intake) -> _Watch:
    async def handle(data: bytes, context: _Context) -> AsyncIterator[bytes]:
        try:
            with intake.call(_client(context), _authorization(context), None) as call:
                try:
                    request = control_pb2.WatchRequest.FromString(await _unpack(call, data))
                except ValueError:
                    raise RejectedError(otlp.INVALID_ARGUMENT, "the request is no WatchRequest") from None
                if call.access.prefix:
                    intake.check_job(call.access, request.job_id)
                async with contextlib.aclosing(control.watch(request)) as commands:
                    async for command in commands:
                        yield command
        except TooManyWatchersError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many monitors watch")
        except RejectedError as error:
            await _abort(context, error)

    return handle


async def _unpack(call: Call, data: bytes) -> bytes:
    """A message decompressed, within the limits."""
    encoding = encoding_of(data)
    if encoding is None:
        call.hold(len(data))
        return data
    inflater = Inflater(encoding)
    await call.inflate(inflater, data)
    return call.body(inflater)


async def _abort(context: _Context, error: RejectedError) -> None:
    text = str(error)
    trailers = () if error.delay is None else otlp.retry_trailers(error.code, text, error.delay)
    await context.abort(_CODES[error.code], text, trailing_metadata=trailers)


def _client(context: _Context) -> str:
    """The address of a client without its port: ``ipv4:10.0.0.1:5000`` as gRPC names it."""
    return context.peer().rpartition(":")[0]


def _authorization(context: _Context) -> str:
    found = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), "")
    return found if isinstance(found, str) else ""


@dataclass(frozen=True)
class Ports:
    """Where the collector listens, and how.

    Attributes:
        otlp_http: None: OTLP over HTTP is not taken.
        needs_otlp_http: False: if its port is taken the collector does without it, and says so.
    """

    grpc: Address
    http: Address
    otlp_http: Address | None = None
    needs_otlp_http: bool = True
    tls: ServerTls | None = None
    tokens: Tokens | None = None
    limits: Limits = field(default_factory=Limits)
    max_connection_age: float = 3_600.0


class CollectorServer:
    """The whole collector in one event loop.

    Args:
        stop_seconds: longest time that `stop` may take.

    Attributes:
        ports: where it listens, once started with the ports that were free.
    """

    def __init__(self, service: Service, outlets: Outlets, ports: Ports, stop_seconds: float = STOP_SECONDS) -> None:
        self.ports = ports
        self._service = service
        self._outlets = outlets
        self._stop_seconds = stop_seconds
        self._webs: list[WebServer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen and begin to judge.

        Raises:
            BindError: an address cannot be listened on.
        """
        ports = self.ports
        intake = Intake(self._service, ports.limits, ports.tokens)
        http = self._listen(ports.http, make_app(self._service, ports.tokens))
        otlp_http = None
        if ports.otlp_http is not None:
            try:
                otlp_http = self._listen(ports.otlp_http, make_otlp_app(intake))
            except BindError as error:
                if ports.needs_otlp_http:
                    raise
                _log.warning("OTLP over HTTP is not taken: %s; choose another port with --otlp-http, or off", error)
        self._grpc = make_grpc_server(self._service, intake, ports.max_connection_age)
        try:
            if ports.tls is not None:
                port = self._grpc.add_secure_port(str(ports.grpc), ports.tls.grpc_credentials())
            else:
                port = self._grpc.add_insecure_port(str(ports.grpc))
        except RuntimeError as error:
            raise BindError(f"cannot listen on {ports.grpc}: {error}") from error
        self.ports = replace(ports, grpc=Address(ports.grpc.host, port), http=http, otlp_http=otlp_http)
        await self._grpc.start()
        for web in self._webs:
            web.start()
        if self._outlets.forward is not None:
            self._outlets.forward.start()
        self._outlets.start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._service.run()))

    def _listen(self, address: Address, app: Starlette) -> Address:
        listener = _listen(address)
        self._webs.append(WebServer(app, listener, self.ports.tls, self.ports.limits.client_connections))
        return Address(address.host, listener.getsockname()[1])

    async def serve(self) -> bool:
        """Serve until SIGINT or SIGTERM, then stop; False: a fault of our own has ended it."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signals.SIGINT, signals.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        waiter = loop.create_task(_wait(stop))
        await asyncio.wait({waiter, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        is_well = True
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                _log.error("the collector cannot go on", exc_info=task.exception())
                is_well = False
        await self.stop()
        return is_well

    async def stop(self) -> None:
        """Take nothing more in, judge and tell what is pending, send what waits; all within the time to stop."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._stop_seconds
        self._service.control.close()
        # A fifth for requests in work, the rest for what they and the last verdicts bring about.
        await asyncio.gather(self._grpc.stop(self._stop_seconds / 5), *(web.stop() for web in self._webs[1:]))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._service.step(final=True)
        left = max(0.1, end - loop.time() - STOP_RESERVE)
        outlets: list[Awaitable[None]] = [self._webs[0].stop()]
        if self._outlets.forward is not None:
            outlets.append(self._outlets.forward.stop(left))
        outlets.append(self._outlets.stop(left))
        await asyncio.gather(*outlets)
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
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BindError(f"cannot listen on {address}: {error}") from error
    return listener
