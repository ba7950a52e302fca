"""The HTTP server of both HTTP ports: uvicorn, with bounds on connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from otel_fr_collector.network.tls import ServerTls

STOP_SECONDS = 1
FIRST_REQUEST_SECONDS = 60.0
"""Seconds after which a connection without a first request is closed."""


class HttpServer:
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
            # Limits apply to the address that connects: a header could contain anything.
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
        """The process handles signals itself: it has more than HTTP to stop."""
        yield


def _limited(limit: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol, bounded: connections of one client's address, and the time until a first request."""
    connections: Counter[str] = Counter()

    class Limited(H11Protocol):
        _address = ""
        _idle_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            self._address = str(peer[0]) if peer else ""
            connections[self._address] += 1
            super().connection_made(transport)
            if connections[self._address] > limit:
                transport.abort()
                return
            self._idle_timer = self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_if_idle)

        def connection_lost(self, exc: Exception | None) -> None:
            connections[self._address] -= 1
            if connections[self._address] <= 0:
                del connections[self._address]
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            super().connection_lost(exc)

        def _close_if_idle(self) -> None:
            cycle: Any = self.cycle
            if cycle is None:
                self.transport.close()

    return Limited
