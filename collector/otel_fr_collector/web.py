"""The HTTP side: /metrics, /healthz, /api/v1/incidents."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from otel_fr_collector.service import Service

STOP_SECONDS = 1


def make_app(service: Service) -> Starlette:
    """The ASGI application over a service."""

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def incidents(request: Request) -> Response:
        state, job = request.query_params.get("state"), request.query_params.get("job")
        found = [
            incident
            for incident in service.book.everything()
            if state in (None, incident["state"]) and job in (None, incident["job"])
        ]
        return JSONResponse({"incidents": found})

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/api/v1/incidents", incidents),
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
