"""The application of the HTTP port: /metrics, /healthz, the API and the page."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_fr_collector.network.tokens import EVERYTHING, Tokens
from otel_fr_collector.service import Service
from otel_fr_collector.web import api

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
