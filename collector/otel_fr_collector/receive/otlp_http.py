"""OTLP over HTTP: POST /v1/traces, /v1/metrics and /v1/logs with protobuf or JSON bodies, compressed or not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from otel_fr_collector.otlp import json_encoding
from otel_fr_collector.otlp import status as otlp_status
from otel_fr_collector.otlp.in_thread import decode_in_thread
from otel_fr_collector.otlp.signals import METHODS, MalformedError
from otel_fr_collector.otlp.wire import TooManyError
from otel_fr_collector.receive.inflate import ENCODINGS, Inflater
from otel_fr_collector.receive.intake import READ_SECONDS, IncomingRequest, Intake, too_slow
from otel_fr_collector.receive.rejections import Reason, RejectedError, malformed

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_HTTP_CODES = {
    otlp_status.INVALID_ARGUMENT: 400,
    otlp_status.DEADLINE_EXCEEDED: 408,
    otlp_status.UNAUTHENTICATED: 401,
    otlp_status.PERMISSION_DENIED: 403,
    otlp_status.RESOURCE_EXHAUSTED: 413,
    otlp_status.UNIMPLEMENTED: 415,
    otlp_status.UNAVAILABLE: 503,
}
LARGE_JSON = 64 << 10
"""Larger JSON, in bytes, is decoded one request at a time: decoding takes up to fifty times as much memory."""
DISCARD_SECONDS = 5.0
"""Seconds in which the rest of a rejected body is read and discarded."""


def make_otlp_app(intake: Intake) -> Starlette:
    """The ASGI application of the OTLP/HTTP port."""
    return Starlette(routes=[Route(f"/v1/{signal}", _endpoint(intake, signal), methods=["POST"]) for signal in METHODS])


def _endpoint(intake: Intake, signal: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await _take(intake, signal, request, kind)
        except RejectedError as error:
            error.strip()
            # RuntimeError: Starlette raises it if all of the body has been read.
            with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect, RuntimeError):
                await asyncio.wait_for(_discard(request, intake.limits.max_request_size), DISCARD_SECONDS)
            return _rejection(error, kind)
        except ClientDisconnect:
            return Response(status_code=400)

    return handle


async def _take(intake: Intake, signal: str, request: Request, kind: str) -> Response:
    client = request.client.host if request.client is not None else ""
    with intake.admit(client, request.headers.get("authorization", ""), signal) as incoming:
        if kind not in (PROTOBUF, JSON):
            raise RejectedError(Reason.UNSUPPORTED, f"the content type must be {PROTOBUF} or {JSON}")
        try:
            data = await asyncio.wait_for(_read(intake, incoming, request), READ_SECONDS)
        except asyncio.TimeoutError:
            raise too_slow() from None
        if kind == JSON:
            data = await _from_json(intake, signal, data)
        answer = await intake.take(incoming, signal, data)
        body = json_encoding.response_json(signal, answer) if kind == JSON else answer
        return Response(body, media_type=kind)


async def _from_json(intake: Intake, signal: str, data: bytes) -> bytes:
    try:
        async with intake.one_at_a_time(len(data) > LARGE_JSON):
            return await decode_in_thread(functools.partial(json_encoding.from_json, signal, data))
    except MalformedError as error:
        raise malformed(str(error)) from error
    except TooManyError as error:
        raise RejectedError(Reason.TOO_LARGE, str(error)) from error


def _rejection(error: RejectedError, kind: str) -> Response:
    status = otlp_status.status(error.code, str(error), error.delay)
    body = json_encoding.message_json(status) if kind == JSON else status.SerializeToString()
    headers = {}
    if error.delay is not None:
        headers["retry-after"] = str(math.ceil(error.delay))
    if error.code == otlp_status.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    media = kind if kind == JSON else PROTOBUF
    return Response(body, _HTTP_CODES.get(error.code, 500), headers, media)


async def _discard(request: Request, most: int) -> None:
    """Read the rest of a body, at most ``most`` bytes: many clients read no response before they have sent it."""
    left = most
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            return


async def _read(intake: Intake, incoming: IncomingRequest, request: Request) -> bytes:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", *ENCODINGS):
        raise RejectedError(Reason.UNSUPPORTED, "the content encoding must be gzip, deflate or identity")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > intake.limits.max_request_size:
        raise intake.too_large()
    inflater = Inflater(encoding) if encoding in ENCODINGS else None
    async for chunk in request.stream():
        if inflater is not None:
            await incoming.inflate(inflater, chunk)
        else:
            incoming.add(chunk)
    return incoming.body(inflater)
