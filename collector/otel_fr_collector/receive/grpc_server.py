"""The gRPC port: the three OTLP services, Control for the rank monitors, and Attribution for launchers."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from otel_fr.attribution.v1 import attribution_pb2
from otel_fr.control.v1 import control_pb2
from otel_fr.semconv import REPORT_INTERVAL_METADATA
from otel_fr_collector import timeline
from otel_fr_collector.attribution.answer import Attribution, as_message
from otel_fr_collector.control import Control, TooManyWatchersError, Watcher
from otel_fr_collector.otlp import status as otlp_status
from otel_fr_collector.otlp.signals import METHODS
from otel_fr_collector.receive.any_path import make_server
from otel_fr_collector.receive.inflate import Inflater, encoding_of
from otel_fr_collector.receive.intake import ATTRIBUTION, CONTROL, READ_SECONDS, IncomingRequest, Intake, too_slow
from otel_fr_collector.receive.rejections import Reason, RejectedError, malformed
from otel_fr_collector.receive.time_limit import TimeLimits

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MOST_CONNECTIONS = 1 << 20
_Context = grpc.aio.ServicerContext[bytes, bytes]
_Export = Callable[[AsyncIterator[bytes], _Context], Awaitable[bytes]]
_Request = TypeVar("_Request", bound=Message)
_Watch = Callable[[AsyncIterator[bytes], _Context], AsyncIterator[bytes]]

MAX_WATCH = 16 << 10
"""Largest GetRequest, or WatchRequest, in bytes. A WatchRequest names a job, a run and the ranks of a machine."""
UPDATE_SECONDS = 0.05
"""Shortest time between two WatchRequests of one stream. Further requests wait in the client."""
_INTERVAL = ((REPORT_INTERVAL_METADATA, str(timeline.REPORT_INTERVAL)),)
MAX_CONNECTION_AGE_MS = 3_600_000
"""Age after which a client is asked to reconnect, so that new certificates and tokens, and new servers behind a load
balancer, take effect."""
MAX_STREAMS = 100
"""Requests and control streams of one connection. With more, a client waits or opens another connection. RFC 9113
(6.5.2) advises at least this many. C-core keeps up to 1 MB of a request that is not admitted yet."""
MAX_PENDING = 16_384
"""Calls of all connections that wait for Python: after a restart, the control streams of all machines of a run arrive
at once. Without this limit, C-core cancels some calls of any client if more than 1,000 wait."""
CONNECTIONS_SHARE = 0.75
"""Share of the process's open files for gRPC connections. The rest is for HTTP, backends and files."""
CONTROL_SERVICE = "otel_fr.control.v1.Control"
ATTRIBUTION_SERVICE = "otel_fr.attribution.v1.Attribution"


class _Reader:
    """Reads the one message of each call."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._limits = TimeLimits(READ_SECONDS)

    def authorization(self, context: _Context) -> str:
        """Return the authorization header, or "" if the collector has no tokens."""
        if self._intake.tokens is None:
            return ""
        found = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), "")
        return found if isinstance(found, str) else ""

    async def read(self, request: IncomingRequest, context: _Context) -> bytes:
        """Read a call's message and decompress it.

        gRPC's iterator is not used, because it would keep the message until the next garbage collection.

        Raises:
            RejectedError: the message has not arrived in `READ_SECONDS`, or is too large; or as in
                `IncomingRequest.inflate`.
        """
        try:
            with self._limits.limited():
                message = await context.read()
        except asyncio.TimeoutError:
            raise too_slow() from None
        if not isinstance(message, bytes):  # grpc.aio.EOF
            # gRPC has rejected the message for its size, and has already answered the client.
            raise self._intake.too_large()
        encoding = encoding_of(message)
        if encoding is None:
            request.hold(len(message))
            return message
        inflater = Inflater(encoding)
        await request.inflate(inflater, message)
        return request.body(inflater)


def make_grpc_server(control: Control, attribution: Attribution, intake: Intake) -> grpc.aio.Server:
    """Make a server of the three OTLP services, of Control and of Attribution, without starting it.

    The requests are unary, but are served as streams of one request. This is the only way to see and count a request
    that arrives slowly, or that gRPC itself has rejected as too large.
    """
    reader = _Reader(intake)
    services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {
        CONTROL_SERVICE: {"Watch": grpc.stream_stream_rpc_method_handler(_watch(control, intake, reader))},
        ATTRIBUTION_SERVICE: {"Get": grpc.stream_unary_rpc_method_handler(_attribute(attribution, intake, reader))},
    }
    for name, method in METHODS.items():
        _, path, call = method.split("/")
        services[path] = {call: grpc.stream_unary_rpc_method_handler(_export(intake, reader, name))}
    return make_server(
        [
            ("grpc.max_receive_message_length", intake.limits.max_request_size),
            # Before 1.85 gRPC decompresses a message completely before it checks its size (tried with 1.63 to 1.83).
            ("grpc.per_message_decompression", 0),
            ("grpc.so_reuseport", 0),
            # Limits of metadata and of HPACK's table do not help if a client ignores SETTINGS: two connections with
            # 5 MB of references to one header took 184 MiB with such limits, and 182 to 185 without.
            # This also bounds streams that the client has reset and that have not ended yet (rapid reset).
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.server.max_pending_requests", MAX_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
            ("grpc.max_allowed_incoming_connections", _max_connections()),
            ("grpc.max_connection_age_ms", MAX_CONNECTION_AGE_MS),
            ("grpc.max_connection_age_grace_ms", 30_000),
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.keepalive_time_ms", 60_000),  # finds clients whose host is gone
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # monitors ask after 10 s
        ],
        services,
    )


def _max_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else int(files * CONNECTIONS_SHARE)


def _export(intake: Intake, reader: _Reader, signal: str) -> _Export:
    async def handle(_: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            with intake.admit(_client(context), reader.authorization(context), signal) as request:
                # No variable for the message: the error of `_abort` keeps this frame until the next garbage collection.
                return await intake.take(request, signal, await reader.read(request, context))
        except RejectedError as error:
            await _abort(context, error.strip())
        raise AssertionError("abort raises")

    return handle


def _watch(control: Control, intake: Intake, reader: _Reader) -> _Watch:
    async def handle(_: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
        try:
            token = reader.authorization(context)
            with intake.admit(_client(context), token, CONTROL) as request:
                watch = _parse(control_pb2.WatchRequest, await reader.read(request, context))
                request.release()  # what stays is bounded by MAX_WATCH and by the number of streams
                if request.access.prefix:
                    intake.check_job(request.access, watch.job_id)
                with control.watch(watch) as commands, intake.grant(token, request.access, commands.end) as grant:
                    await context.send_initial_metadata(_INTERVAL)
                    updates = asyncio.ensure_future(_update(control, commands, context))
                    try:
                        async for command in commands:
                            yield command
                    finally:
                        updates.cancel()
                    if grant.revoked:
                        raise RejectedError(Reason.UNAUTHENTICATED, "the token was removed, or is for other jobs now")
        except TooManyWatchersError:
            intake.count_rejected(CONTROL, Reason.CAPACITY)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many control streams are open")
        except RejectedError as error:
            await _abort(context, error)

    return handle


async def _update(control: Control, watcher: Watcher, context: _Context) -> None:
    """Follow the monitor's updates of the ranks that it serves. An invalid update ends the stream."""
    try:
        while isinstance(message := await context.read(), bytes):
            control.serve(watcher, _parse(control_pb2.WatchRequest, message))
            await asyncio.sleep(UPDATE_SECONDS)
    except RejectedError:
        watcher.end()


def _attribute(attribution: Attribution, intake: Intake, reader: _Reader) -> _Export:
    async def handle(_: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            with intake.admit(_client(context), reader.authorization(context), ATTRIBUTION) as request:
                asked = _parse(attribution_pb2.GetRequest, await reader.read(request, context))
                if request.access.prefix:
                    intake.check_job(request.access, asked.job_id)
                attempt = asked.attempt if asked.HasField("attempt") else None
                found = await attribution.find(asked.job_id, attempt, asked.run_id or None)
        except RejectedError as error:
            await _abort(context, error)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such run is known")
        return as_message(found).SerializeToString()

    return handle


def _parse(kind: type[_Request], data: bytes) -> _Request:
    name = kind.DESCRIPTOR.name
    if len(data) > MAX_WATCH:
        raise RejectedError(Reason.TOO_LARGE, f"a {name} is larger than {MAX_WATCH} bytes")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise malformed(f"the request is not a {name}") from None


async def _abort(context: _Context, error: RejectedError) -> None:
    text = str(error)
    trailers = () if error.delay is None else otlp_status.retry_trailers(error.code, text, error.delay)
    await context.abort(_CODES[error.code], text, trailing_metadata=trailers)


def _client(context: _Context) -> str:
    """The address of a client without its port. gRPC writes it as ``ipv4:10.0.0.1:5000``."""
    return context.peer().rpartition(":")[0]
