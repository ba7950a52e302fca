"""The HTTP side: /metrics, /healthz, and the routes of the API and the page."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from otel_fr_collector import api
from otel_fr_collector.service import Service

STOP_SECONDS = 1


def make_app(service: Service) -> Starlette:
    """The ASGI application over a service."""

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            *api.routes(service),
        ]
    )


class WebServer:
    """Serves the application in the running loop.

    Args:
        listener: bound and listening socket, closed by `stop`.
    """

    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_SECONDS,
            server_header=False,
        )
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
