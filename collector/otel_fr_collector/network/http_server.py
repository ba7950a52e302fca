"""The HTTP server of both HTTP ports: uvicorn, with bounds on connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from otel_fr_collector.network.tls import ServerTls

STOP_SECONDS = 1
HEAD_SECONDS = 30.0
"""Seconds in which the head of a request must arrive, since the connection began or the last response ended."""
READ_SECONDS = 60.0
"""Seconds after which a connection is closed if the client has read nothing of a waiting response."""
MAX_PIPELINED = 64 << 10
"""Bytes of further requests that a client may send before a request is answered. Browsers and exporters send none."""
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted in each turn of the event loop. uvloop accepts one from each descriptor. With a single
descriptor, 300 clients that sent one request after the other kept the next client waiting for 36 s."""


class HttpServer:
    """Serves an application in the running loop.

    Args:
        listener: a listening socket. `stop` closes it.
        client_connections: connections from one client's address. Further connections are closed at once.
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
            # Limits apply to the address that connects, because a header could contain anything.
            proxy_headers=False,
        )
        config.load()
        # uvicorn logs a warning for every request that is not HTTP, so clients could fill the disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config.ssl = tls.ssl_context() if tls is not None else None
        self._server = _Uvicorn(config)
        self._listeners = [listener, *(listener.dup() for _ in range(1, ACCEPTED_AT_ONCE))]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._server.serve(self._listeners))

    async def stop(self, seconds: float) -> None:
        """End open requests within about a second, and at most ``seconds`` seconds."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=min(seconds, STOP_SECONDS + 1))
            self._task.cancel()
        for listener in self._listeners:
            listener.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the process handles them, because it has more than HTTP to stop."""
        yield


class _Flow(FlowControl):
    """Reads nothing while a request waits for its answer. uvicorn's own class would read whenever an application checks
    whether the client is still there."""

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        if self._conn.their_state is not h11.DONE:
            super().resume_reading()


def _limited(limit: int) -> type[asyncio.Protocol]:  # noqa: C901
    """uvicorn's protocol with limits on the connections of one client's address and on the time of each request.

    uvicorn itself closes a connection that is idle after a response. It does not close a connection on which the next
    request, or the rest of the last one, arrives byte by byte.
    """
    connections: Counter[str] = Counter()

    class Limited(H11Protocol):
        _address = ""
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            self._address = str(peer[0]) if peer else ""
            connections[self._address] += 1
            super().connection_made(transport)
            # An answer is complete once the client has read it. Only then is the next request read. The high limit is
            # not 0, which would pause writing over TLS for ever.
            transport.set_write_buffer_limits(high=1, low=0)
            self.flow = _Flow(transport, self.conn)
            if connections[self._address] > limit:
                transport.abort()
                return
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            connections[self._address] -= 1
            if connections[self._address] <= 0:
                del connections[self._address]
            self._stop_timers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before: Any = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                _cancel(self._head_timer)
            if self.flow.read_paused and len(self.conn.trailing_data[0]) > MAX_PIPELINED:
                self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            """Answer a request that is not HTTP, unless an answer has begun. uvicorn would try, and log an error."""
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()

        def on_response_complete(self) -> None:
            before: Any = self.cycle
            super().on_response_complete()
            if self.transport.is_closing():
                return
            self.flow.resume_reading()
            if self.cycle is before:
                self._await_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader(self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._write_timer)

        def _await_head(self) -> None:
            _cancel(self._head_timer)
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

        def _await_reader(self, waiting: int) -> None:
            """Disconnect a client that reads nothing. ``waiting``: bytes that it has not read yet."""

            def check() -> None:
                now = self.transport.get_write_buffer_size()
                if now >= waiting:
                    self.transport.abort()
                else:
                    self._await_reader(now)

            self._write_timer = self.loop.call_later(READ_SECONDS, check)

        def _stop_timers(self) -> None:
            _cancel(self._head_timer)
            _cancel(self._write_timer)

    return Limited


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
