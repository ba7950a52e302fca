"""A client of the collector's HTTP API, for the terminal commands."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import urllib3

from otel_fr.config import COLLECTOR_VARIABLE, DEFAULT_COLLECTOR, TOKEN_VARIABLE

_T = TypeVar("_T")
Json = dict[str, Any]

UNREACHABLE = 3
"""Exit status: the collector cannot be reached, or refuses the request."""
TIMEOUT = urllib3.Timeout(connect=5.0, read=15.0)
STREAM_TIMEOUT = urllib3.Timeout(connect=5.0, read=40.0)
"""Longer than the 15 s after which the collector sends a keep-alive."""


class CollectorError(Exception):
    """The collector cannot be reached, or refuses the request; the text says what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the collector's address, token and certificate authority."""
    parser.add_argument(
        "--collector",
        metavar="URL",
        default=os.environ.get(COLLECTOR_VARIABLE) or DEFAULT_COLLECTOR,
        help=f"the collector's HTTP address (default: ${COLLECTOR_VARIABLE}, otherwise {DEFAULT_COLLECTOR})",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help=f"file with the token (default: the token in ${TOKEN_VARIABLE})"
    )
    parser.add_argument("--ca-file", metavar="FILE", type=Path, help="also trust this certificate authority (PEM)")


class Client:
    """One collector.

    Args:
        url: base, with any path prefix a proxy adds.

    Raises:
        CollectorError: the URL is not an http or https URL, or a file cannot be read.
    """

    def __init__(self, url: str, token: str = "", ca_file: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CollectorError(f"{url!r} is not an http:// or https:// URL")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = ssl.create_default_context()
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise CollectorError(f"--ca-file {ca_file}: {error}") from error
        self._http = urllib3.PoolManager(ssl_context=context, timeout=TIMEOUT, retries=False)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Client:
        """Create a client from the options of `add_arguments`.

        Raises:
            CollectorError: a setting cannot be used.
        """
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if args.token_file is not None:
            try:
                token = args.token_file.read_text().strip()
            except (OSError, ValueError) as error:
                raise CollectorError(f"--token-file {args.token_file}: {error}") from error
        if not token.isascii() or not token.isprintable():
            raise CollectorError("the token contains characters that are not allowed in an HTTP header")
        return cls(args.collector, token, args.ca_file)

    def listed(self, kind: str, **query: str | None) -> list[Json]:
        """The list in the answer to ``GET /api/v1/{kind}``; ``kind`` is ``jobs`` or ``incidents``.

        Raises:
            CollectorError: the collector cannot be reached, refuses the request, or answers something else.
        """
        given = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}/api/v1/{kind}" + (f"?{urlencode(given)}" if given else "")
        response = self._reach(lambda: self._http.request("GET", address, headers=self._headers))
        self._check(response.status, response.data)
        try:
            found: list[Json] = json.loads(response.data)[kind]
        except (ValueError, KeyError, TypeError) as error:
            raise CollectorError(
                f"the server at {self.url} is not an otel-fr collector; is this its HTTP address?"
            ) from error
        return found

    def events(self) -> Iterator[tuple[str, Any]]:
        """The live stream, as (name, data), until the collector ends it.

        Raises:
            CollectorError: the stream cannot be opened, or broke.
        """
        address = f"{self.url}/api/v1/events"
        headers = {**self._headers, "Accept": "text/event-stream"}
        response = self._reach(
            lambda: self._http.request(
                "GET", address, headers=headers, preload_content=False, timeout=STREAM_TIMEOUT, retries=False
            )
        )
        try:
            if response.status != 200:
                self._check(response.status, response.read(4_096))
            yield from _parse(self._lines(response))
        finally:
            response.close()

    def _lines(self, response: urllib3.BaseHTTPResponse) -> Iterator[str]:
        rest = b""
        chunks = response.stream(65_536)
        while (chunk := self._reach(lambda: next(chunks, None))) is not None:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")

    def _reach(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CollectorError(
                f"no collector at {self.url}: {_reason(error)}. Is it running, and is --collector its --http address?"
            ) from error

    def _check(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        try:
            reason = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            reason = f"status {status}"
        hint = f" (pass a token with --token-file or {TOKEN_VARIABLE})" if status in (401, 403) else ""
        raise CollectorError(f"{self.url} refused the request: {reason}{hint}")


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Parse Server-Sent Events (html.spec.whatwg.org, server-sent events): their names and data."""
    name = "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield name, json.loads("\n".join(data))
            name, data = "message", []
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
