"""HTTP requests to servers that may be slow or hostile. Their time and the size of responses are bounded.

A server that sends a byte per second cannot extend a deadline. Responses are not decompressed. Threads that wait for a
server do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import email.utils
import http.client
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

import urllib3

from otel_fr.timed_http import POOL_CLASSES, bounded_body, set_deadline

MAX_RETRY_AFTER = 300.0
"""Most seconds that a server may ask to wait before a retry (docs/guide/security.md)."""
_T = TypeVar("_T")


class HttpError(OSError):
    """There is no response: the server cannot be reached, is too slow, or does not speak HTTP.

    Attributes:
        reached: there was a connection.
    """

    def __init__(self, text: str, *, reached: bool) -> None:
        super().__init__(text)
        self.reached = reached


@dataclass(frozen=True)
class Answer:
    """A response.

    Attributes:
        body: at most `otel_fr.timed_http.MAX_BODY` bytes of the body, as received.
        retry_after: seconds to wait before a retry, at most `MAX_RETRY_AFTER`. None: not given.
    """

    status: int
    body: bytes
    retry_after: float | None


class HttpClient:
    """A pool of connections. Several threads may use it at once.

    Args:
        connect: seconds for connecting, and for sending the request.
        total: seconds from the beginning of a request to the end of its response.
        connections: how many connections to one server are kept open.
        tls: None: the system's CAs are trusted.
    """

    def __init__(
        self, *, connect: float, total: float, connections: int = 1, tls: ssl.SSLContext | None = None
    ) -> None:
        self._total = total
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            retries=False,
            timeout=urllib3.Timeout(connect=connect, read=total),
            ssl_context=tls,
        )
        self._pool.pool_classes_by_scheme = POOL_CLASSES

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """Send one request, without following redirects. A URL's user and password become basic authentication.

        Raises:
            HttpError: no response came in time.
        """
        set_deadline(self._total)
        try:
            headers = {"Accept-Encoding": "identity", **_basic(url, headers), **headers}
            response = self._pool.request(
                method, url, body=body, headers=headers, redirect=False, preload_content=False, decode_content=False
            )
            found = bounded_body(response)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reached = not isinstance(error, urllib3.exceptions.ConnectTimeoutError)  # every error of connecting is one
            raise HttpError(_problem(error), reached=reached) from error
        return Answer(response.status, found, read_retry_after(response.headers.get("retry-after"), time.time()))

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.clear()


def _basic(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The header for a URL's user and password, which urllib3 does not send. Another authorization takes precedence."""
    given = urllib3.util.parse_url(url).auth
    if not given or any(name.lower() == "authorization" for name in headers):
        return {}
    return {"Authorization": "Basic " + base64.b64encode(unquote(given).encode()).decode()}


def _problem(error: BaseException) -> str:
    """Why there is no response. Unlike urllib3's texts, it names no pool, address or function."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "the host name has no address"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        cause = error.__cause__
        return cause.strerror if isinstance(cause, OSError) and cause.strerror else "could not connect"
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return "the connection timed out"
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return "the response timed out"
    if isinstance(error, urllib3.exceptions.SSLError):
        return f"TLS: {error}"
    cause = error.args[-1] if isinstance(error, urllib3.exceptions.ProtocolError) and error.args else None
    if isinstance(cause, OSError):
        return cause.strerror or "the connection was closed"
    if isinstance(cause, http.client.HTTPException):
        return "the response is not HTTP"
    return f"{type(error).__name__}: {error}"


def read_retry_after(text: str | None, now: float) -> float | None:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3: seconds or a date). None: it has neither.

    Args:
        now: Unix time.
    """
    if text is None:
        return None
    if text.strip().isdecimal():
        return bounded_delay(float(text))
    try:
        return bounded_delay(email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def bounded_delay(seconds: float) -> float:
    """Limit a delay that a server asks for to 0 to `MAX_RETRY_AFTER` seconds. NaN becomes 0."""
    return min(seconds, MAX_RETRY_AFTER) if seconds > 0 else 0.0


class Workers:
    """Daemon threads for blocking calls. Unlike threads of `concurrent.futures`, they do not delay the process's end.

    Args:
        count: most threads. Each is started when it is first needed.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = self._busy = 0
        self._work: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    async def run(self, work: Callable[[], _T]) -> _T:
        """Call ``work`` in one of the threads and return its result. Cancelling this does not end a running call."""
        self._busy += 1
        try:
            if self._busy > self._started and self._started < self._count:
                self._started += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            future: concurrent.futures.Future[_T] = concurrent.futures.Future()
            self._work.put((future, work))
            return await asyncio.wrap_future(future)
        finally:
            self._busy -= 1

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  the caller of `run` raises it
                future.set_exception(error)
