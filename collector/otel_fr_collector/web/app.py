"""The application of the HTTP port: /metrics, /healthz, the API and the page."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping

from prometheus_client.exposition import choose_encoder
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
from otel_fr_collector.web.answers import Answers, BoundedAnswers, FullError, full
from otel_fr_collector.web.finished import Finished

_API = "/api/"
OPEN_PATHS = re.compile(r"/|/healthz|/page/.*|/runbooks/.*")
"""Paths that need no token. A supervisor must be able to check that the collector runs. The page contains no data: it
asks for a token itself and shows what the API returns. Runbooks are the same for all."""


def make_app(service: Service, tokens: Tokens | None = None, finished: Finished | None = None) -> Starlette:
    """The ASGI application of a service. With ``tokens``, it serves only clients that may read.

    Args:
        finished: the jobs that are over. None: no job is kept once it is over.
    """

    answers = Answers()

    async def metrics(request: Request) -> Response:
        # Checked here and not by path: a route matches several spellings ("/metrics%0A").
        if request.state.access.prefix:
            return _refuse(request.scope, 403, "the token is valid for some jobs only, and this covers all jobs")
        # OpenMetrics if the client accepts it: only that format has exemplars.
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(service.metrics.registry), headers={"content-type": content_type})

    async def healthz(_: Request) -> Response:
        problems = service.problems()
        return PlainTextResponse(f"degraded: {'; '.join(problems)}\n" if problems else "ok\n")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refuse(request.scope, error.status_code, error.detail, error.headers)

    async def no_room(_: Request, __: Exception) -> Response:
        return full()

    return Starlette(
        exception_handlers={HTTPException: refuse, FullError: no_room},
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            *api.routes(service, answers, finished or Finished(service)),
        ],
        middleware=[Middleware(AccessCheck, tokens=tokens), Middleware(BoundedAnswers, answers=answers)],
    )


class AccessCheck:
    """Passes a request on if its token may read. Requests that pages of other sites make may only read.

    The reason: a browser that asked for the token as a password (Basic) then sends it with requests from any page.
    Without tokens, a browser on the same machine can reach a port on loopback.

    Args:
        tokens: None: every client may read.
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
        until_revoked: Callable[..., contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        if self._tokens is not None and OPEN_PATHS.fullmatch(scope["path"]) is None:
            found = self._tokens.find(headers.get("authorization", ""))
            if found is None:
                # A browser shows its own dialog where Basic is offered; the page has a dialog of its own.
                scheme = "Bearer" if scope["path"].startswith(_API) else "Basic"
                reason = "the token is not known" if "authorization" in headers else "a token is required"
                return _refuse(
                    scope,
                    401,
                    f"{reason}: Authorization: Bearer TOKEN, or the token as password",
                    {"www-authenticate": f'{scheme} realm="otel-fr collector: the token is the password"'},
                )
            if not found.read:
                return _refuse(scope, 403, "the token is write-only")
            access = found
            until_revoked = functools.partial(self._tokens.grant, headers.get("authorization", ""), access)
        scope.setdefault("state", {}).update(access=access, until_revoked=until_revoked)
        if scope["method"] not in ("GET", "HEAD") and _is_from_elsewhere(headers):
            return _refuse(scope, 403, "requests from other sites may only read (a proxy must pass on the Host header)")
        return None


def _is_from_elsewhere(headers: Headers) -> bool:
    """Return whether a page of another site has made this request, which is neither GET nor HEAD.

    Browsers send Sec-Fetch-Site, but only over TLS or to the same machine (W3C, Fetch Metadata: "potentially
    trustworthy" URLs). They send Origin with all requests other than GET and HEAD. Programs send neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("none", "same-origin")
    origin = headers.get("origin")
    own = (headers.get("host"), headers.get("x-forwarded-host"))
    return origin is not None and origin.partition("://")[2] not in own


def _refuse(scope: Scope, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in the format of its path: JSON for the API, text for everything else."""
    if scope["path"].startswith(_API):
        return JSONResponse({"error": text}, status, headers)
    return PlainTextResponse(text + "\n", status, headers)
