"""Limits on the bytes of answers that are being sent: in total, per tenant and per client address."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE = 64 << 10
"""Bytes that are written at once. A connection holds no more than these and its transport's buffer."""
MAX_ANSWERS = 64 << 20
"""Bytes of answers in flight to all clients."""
MAX_OF_TENANT = MAX_ANSWERS // 4
"""Bytes of answers in flight to the clients whose tokens have the same job prefix."""
MAX_OF_CLIENT = MAX_ANSWERS // 8
"""Bytes of answers in flight to one client address with tokens of one job prefix."""
MAKING = 2
"""Large answers that are made at the same time. Making one takes several times its size in memory."""
MAKING_OF_CLIENT = 4
"""Large answers to one client address, with tokens of one prefix, that are being made or wait for their turn."""
RETRY_AFTER = 2
"""Seconds after which a client should ask again."""

Owner = tuple[str, str]
"""The job prefix of a token, and the client's address."""


class FullError(Exception):
    """There is no room for one more answer."""


class Answers:
    """The answers in flight. Equal bodies are counted once per client, and kept in memory once (`same`)."""

    def __init__(self) -> None:
        self._size: Counter[str | Owner | None] = Counter()
        self._bodies: dict[tuple[Owner, bytes], int] = {}
        self._kept: dict[bytes, tuple[bytes, int]] = {}
        self._making: Counter[Owner] = Counter()
        self._makers = asyncio.Semaphore(MAKING)

    @property
    def size(self) -> int:
        """Bytes in flight."""
        return self._size[None]

    def same(self, body: bytes) -> bytes:
        """Return an equal body that is already in flight, or this one."""
        return self._kept.get(body, (body, 0))[0]

    @contextlib.asynccontextmanager
    async def making(self, owner: Owner) -> AsyncIterator[None]:
        """Wait for a turn to make a large answer.

        Raises:
            FullError: `MAKING_OF_CLIENT` answers to this owner are being made or wait.
        """
        if self._making[owner] >= MAKING_OF_CLIENT:
            raise FullError
        self._making[owner] += 1
        try:
            async with self._makers:
                yield
        finally:
            self._making[owner] -= 1
            if not self._making[owner]:
                del self._making[owner]

    @contextlib.contextmanager
    def held(self, owner: Owner, body: bytes) -> Iterator[None]:
        """Count an answer while it is sent: the piece that is written, and the body unless an equal one is counted.

        Raises:
            FullError: a limit is reached. A limit never refuses the only answer that it counts.
        """
        key = owner, body
        size = min(PIECE, len(body)) + (0 if key in self._bodies else len(body))
        limits: tuple[tuple[str | Owner | None, int], ...]
        limits = ((None, MAX_ANSWERS), (owner[0], MAX_OF_TENANT), (owner, MAX_OF_CLIENT))
        if any(self._size[one] and self._size[one] + size > most for one, most in limits):
            raise FullError
        self._count(owner, size)
        self._bodies[key] = self._bodies.get(key, 0) + 1
        kept, count = self._kept.get(body, (body, 0))
        self._kept[kept] = kept, count + 1
        try:
            yield
        finally:
            self._count(owner, -min(PIECE, len(body)))
            self._end(key)

    def _end(self, key: tuple[Owner, bytes]) -> None:
        owner, body = key
        self._bodies[key] -= 1
        if not self._bodies[key]:
            del self._bodies[key]
            self._count(owner, -len(body))
        kept, count = self._kept.pop(body)
        if count > 1:
            self._kept[kept] = kept, count - 1

    def _count(self, owner: Owner, more: int) -> None:
        for one in (None, owner[0], owner):
            self._size[one] += more
            if not self._size[one]:
                del self._size[one]


def owner_of(scope: Scope) -> Owner:
    """Return who receives the answer to a request. The request's token must have been checked."""
    return scope["state"]["access"].prefix, (scope.get("client") or ("",))[0]


class BoundedAnswers:
    """Counts each complete answer while it is sent, and writes it in pieces as fast as the client reads.

    Streams have no known length, and files arrive in pieces: both pass uncounted. Streams have bounds of their own.
    """

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def bounded(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and "content-length" in Headers(raw=message["headers"]):
                start = message
                return
            begin, start = start, None
            if begin is not None and not message.get("more_body", False):
                await self._send_whole(scope, receive, send, begin, message.get("body", b""))
                return
            if begin is not None:
                await send(begin)
            await send(message)

        await self._app(scope, receive, bounded)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send, begin: Message, body: bytes) -> None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._answers.held(owner_of(scope), body))
            except FullError:
                await full()(scope, receive, send)
                return
            await send(begin)
            for at in range(0, len(body), PIECE):
                await send({"type": "http.response.body", "body": body[at : at + PIECE], "more_body": True})
                await asyncio.sleep(0)  # lets others run, and shows that the client has gone
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def full() -> JSONResponse:
    """The answer that is sent if there is no room for the requested one."""
    return JSONResponse(
        {"error": "too many answers are in flight; ask again later"}, 503, {"Retry-After": str(RETRY_AFTER)}
    )
