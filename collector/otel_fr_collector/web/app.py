"""The HTTP side: /metrics, /healthz, the routes of the API and the page; and the server that both HTTP ports use."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from otel_fr_collector.network.tls import ServerTls
from otel_fr_collector.network.tokens import EVERYTHING, Tokens
from otel_fr_collector.service import Service
from otel_fr_collector.web import api

STOP_SECONDS = 1
SILENT_SECONDS = 60.0
"""A connection on which no first request has come for so long is closed."""
_API = "/api/"
OPEN_PATHS = re.compile(r"/|/healthz|/page/.*")
"""Paths that need no token: whoever starts and stops the collector must be able to ask whether it lives, and the page
is the same for everybody: it asks for a token itself and shows what the API then tells."""


def make_app(service: Service, tokens: Tokens | None = None) -> Starlette:
    """The ASGI application over a service; with ``tokens``, for those who may read."""

    async def metrics(request: Request) -> Response:
        # Here and not by the path: a route answers to more spellings than one ("/metrics%0A").
        if request.state.access.prefix:
            return _refuse(request.scope, 403, "the token is for some jobs only, and this is of all")
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refuse(request.scope, error.status_code, error.detail, error.headers)

    return Starlette(
        exception_handlers={HTTPException: refuse},  # no such path, no such method
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            *api.routes(service),
        ],
        middleware=[Middleware(Doorkeeper, tokens=tokens)],
    )


class Doorkeeper:
    """Lets a request through if its token may read, and if no other site's page has made it.

    A browser asks for the token as a password (Basic), and then sends it whatever page the request comes from; without
    tokens it may be the only one that reaches a port on loopback. So what other sites make it send may only read.

    Args:
        tokens: None: everybody may read.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._refusal(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        access = EVERYTHING
        if self._tokens is not None and OPEN_PATHS.fullmatch(scope["path"]) is None:
            found = self._tokens.find(headers.get("authorization", ""))
            if found is None:
                # A browser asks for a password itself where Basic is offered; the page asks in its own words.
                scheme = "Bearer" if scope["path"].startswith(_API) else "Basic"
                told = "the token is not known" if "authorization" in headers else "a token is needed"
                return _refuse(
                    scope,
                    401,
                    f"{told}: Authorization: Bearer TOKEN, or the token as password",
                    {"www-authenticate": f'{scheme} realm="otel-fr collector: the token is the password"'},
                )
            if not found.read:
                return _refuse(scope, 403, "the token is for writing only")
            access = found
        scope.setdefault("state", {})["access"] = access
        origin = headers.get("sec-fetch-site", "none")
        if scope["method"] not in ("GET", "HEAD") and origin not in ("none", "same-origin"):
            return _refuse(scope, 403, "requests from other sites may only read")
        return None


def _refuse(scope: Scope, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in the form in which its path answers: the API in JSON, all else as text."""
    if scope["path"].startswith(_API):
        return JSONResponse({"error": text}, status, headers)
    return PlainTextResponse(text + "\n", status, headers)


class WebServer:
    """Serves an application in the running loop.

    Args:
        listener: bound and listening socket, closed by `stop`.
        client_connections: of one client's address; further ones are closed at once.
    """

    def __init__(
        self,
        app: Starlette,
        listener: socket.socket,
        tls: ServerTls | None = None,
        client_connections: int = 16_384,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=_limited(client_connections),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_SECONDS,
            server_header=False,
            # The address that counts is the one that connects: a header could say anything.
            proxy_headers=False,
        )
        config.load()
        config.ssl = tls.ssl_context() if tls is not None else None
        self._server = _Uvicorn(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listener]))

    async def stop(self) -> None:
        """End open requests within about a second."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_SECONDS + 1)
            self._task.cancel()
        self._listener.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the collector's own business: it has more than HTTP to stop."""
        yield


def _limited(most: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol with a bound on one client's connections, and on how long a connection may say nothing."""
    connections: Counter[str] = Counter()

    class Limited(H11Protocol):
        _address = ""
        _silence: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            self._address = str(peer[0]) if peer else ""
            connections[self._address] += 1
            super().connection_made(transport)
            if connections[self._address] > most:
                transport.abort()
                return
            self._silence = self.loop.call_later(SILENT_SECONDS, self._end_silence)

        def connection_lost(self, exc: Exception | None) -> None:
            connections[self._address] -= 1
            if connections[self._address] <= 0:
                del connections[self._address]
            if self._silence is not None:
                self._silence.cancel()
            super().connection_lost(exc)

        def _end_silence(self) -> None:
            cycle: Any = self.cycle
            if cycle is None:
                self.transport.close()

    return Limited
