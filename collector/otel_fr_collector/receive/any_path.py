"""A gRPC server that survives a request whose path is not UTF-8.

grpcio (1.85) decodes the paths of requests in its accept loop. One such request, from anybody who can connect, ends the
server. grpcio decodes only paths of methods that are not registered with gRPC's core, which compares the paths of
registered methods itself. So all methods are registered here, and other paths are never read.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

_log = logging.getLogger(__name__)

_cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")
DECODES_IN_LOOP = hasattr(_cygrpc.AioServer, "_make_request_call_future")
"""Whether this grpcio decodes in its accept loop. In earlier versions, an error of decoding ends only that request."""


class _Calls(_cygrpc.AioServer):  # type: ignore[misc]
    """grpcio's server, with another treatment of requests for unregistered methods."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:
            registered: asyncio.Future[Any] = super()._make_request_call_future(method)
            return registered
        return asyncio.get_running_loop().create_task(self._refuse())

    async def _refuse(self) -> None:
        """Answer all requests for unregistered methods with UNIMPLEMENTED. `_request_call` raises when the server
        stops."""
        loop, nothing = asyncio.get_running_loop(), _cygrpc._MethodResolver([], {})
        answers: set[asyncio.Task[None]] = set()  # asyncio keeps no reference to a task
        while True:
            call = await self._request_call()
            work = _cygrpc._handle_rpc("", nothing, (), call, loop, False)
            answer = loop.create_task(_cygrpc._schedule_rpc_coro(work, call, loop, ""))
            answers.add(answer)
            answer.add_done_callback(answers.discard)


def make_server(
    options: Sequence[tuple[str, int]], services: Mapping[str, Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]]
) -> grpc.aio.Server:
    """Make a server without starting it. ``services``: the handlers of methods, by service."""
    if DECODES_IN_LOOP:
        try:
            return _make_registered(options, services)
        except (AttributeError, TypeError, ImportError) as error:
            _log.warning("this grpcio is unknown: a request with an invalid path can end the gRPC server (%s)", error)
    handlers = [grpc.method_handlers_generic_handler(name, dict(methods)) for name, methods in services.items()]
    return grpc.aio.server(handlers=handlers, options=options)


def _make_registered(
    options: Sequence[tuple[str, int]], services: Mapping[str, Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]]
) -> grpc.aio.Server:
    """Raises:
    AttributeError, TypeError, ImportError: grpcio's internals have changed since 1.85.
    """
    kind: Any = importlib.import_module("grpc.aio._server").Server
    server = kind.__new__(kind)
    server._loop = _cygrpc.get_working_loop()
    server._server = _Calls(server._loop, None, (), (), tuple(options), None)
    for name, methods in services.items():
        server.add_registered_method_handlers(name, methods)
    made: grpc.aio.Server = server
    return made
