"""The monitor's log on standard error: few lines, as ``otel-fr[rank N]: ...``.

A program that captures a job's output reads until every process has closed the pipe. So the monitor must not keep
a pipe open after its rank has ended. It has no standard output. It keeps its standard error open if that is a terminal
or a file, but closes a pipe when the rank ends (`release_pipes`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from otel_fr.printable import one_line, shortened

MAX_MESSAGE = 2_000
"""Most characters of a message. Names, values of variables and servers' answers may have any length."""
ENDPOINT_SECONDS = 60.0
"""Shortest time between two messages about an endpoint that does not answer."""
EXPLAIN_SECONDS = 8.0
"""How long the monitor waits at its end for such a message. Two endpoints may be probed for it."""

STUCK_SECONDS = 0.2
"""How long a message waits for room in a full pipe."""

OnTrouble = Callable[[str, bool], bool]
"""Called for each message of an exporter, with the name of the exporter's thread, and True if the server does not know
the signal. Returns True if the message must not be logged."""
_HEADERS = "opentelemetry.util.re"
"""The SDK's logger for OTEL_EXPORTER_OTLP_HEADERS."""
_REFUSED = (grpc.StatusCode.UNIMPLEMENTED, 404, 405, "404", "405")
"""Answers of a server that does not know a signal, over gRPC and HTTP, as exporters log them."""


class _EndpointHandler(logging.Handler):
    """Logs at most one message of OpenTelemetry's exporters a minute, and calls ``on_trouble`` for each message.

    Finding an explanation takes seconds. A thread does it, so that others that log do not wait for this handler's lock.
    """

    def __init__(self, target: logging.Handler, on_trouble: OnTrouble, explain: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._target = target
        self._on_trouble = on_trouble
        self._explain = explain
        self._quiet_until = 0.0
        self._saying: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if self._on_trouble(record.threadName or "", any(one in _REFUSED for one in arguments)):
            return
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + ENDPOINT_SECONDS
        self._saying = threading.Thread(target=self._say, args=(record,), name="otel-fr-endpoint", daemon=True)
        self._saying.start()

    def flush(self) -> None:
        """Wait until the last message is written, for at most `EXPLAIN_SECONDS`."""
        if self._saying is not None:
            self._saying.join(EXPLAIN_SECONDS)

    def _say(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        with contextlib.suppress(Exception):  # without an explanation, log the exporter's own message
            said = self._explain(said)
        if not said:
            return
        record.msg, record.args = said, ()
        record.exc_info = None
        record.exc_text = None
        self._target.handle(record)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Log nothing inside the block."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class _Formatter(logging.Formatter):
    """Makes each message one line without control characters: a job's names and errors may contain anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        record.message = one_line(shortened(record.message, MAX_MESSAGE))
        return super().formatMessage(record)


class _Output:
    """Standard error. Whoever reads it may have stopped, but the monitor must continue: then messages are dropped."""

    def write(self, text: str) -> None:
        write(2, text.encode("utf-8", "replace"), STUCK_SECONDS)


class _Once(logging.Filter):
    """Passes only the first message. The SDK logs one for each bad item whenever it reads a variable.

    A bad header is left out of the message, because headers contain tokens.
    """

    _is_first = True

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _HEADERS:
            record.args = ("...",)
        is_first, self._is_first = self._is_first, False
        return is_first


def configure(rank: int) -> logging.Handler:
    """Send warnings and errors of this process to standard error."""
    handler = logging.StreamHandler(_Output())
    handler.setFormatter(_Formatter(f"otel-fr[rank {rank}]: %(message)s"))
    for name in ("opentelemetry.sdk.resources", _HEADERS):
        logging.getLogger(name).addFilter(_Once())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
    return handler


def watch_exporters(handler: logging.Handler, on_trouble: OnTrouble, explain: Callable[[str], str] = str) -> None:
    """Limit the exporters' own messages, and use them as a sign that an endpoint does not answer.

    An exporter retries for up to ten seconds before it returns a failure, but logs a warning at once.

    Args:
        on_trouble: called for each message.
        explain: returns the text to log instead of an exporter's message; "": log nothing.
    """
    for name in ("opentelemetry", "urllib3", "requests", "otel_fr.monitor.telemetry.export"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers[:] = [_EndpointHandler(handler, on_trouble, explain)]
    for name in ("grpc.exporter", "http.trace_exporter", "http._log_exporter", "http.metric_exporter"):
        # The SDK drops equal messages of the same minute, which would hide that the endpoint does not answer.
        logging.getLogger(f"opentelemetry.exporter.otlp.proto.{name}").filters.clear()


def write(handle: int, data: bytes, seconds: float) -> None:
    """Write to a file, a terminal or a pipe. If a pipe has no room for ``seconds``, drop the rest.

    Raises:
        OSError: nobody can read the data.
    """
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    for start in range(0, len(data), select.PIPE_BUF):
        if not poll.poll(max(0.0, seconds) * 1000):
            return
        os.write(handle, data[start : start + select.PIPE_BUF])  # a pipe with room takes as much without waiting


def close_input_and_output() -> None:
    """Replace standard input and output by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 2:
        os.close(null)


def release_pipes() -> None:
    """Replace standard error by /dev/null, unless it is a terminal or a file."""
    try:
        mode = os.fstat(2).st_mode
    except OSError:
        return
    if stat.S_ISREG(mode) or os.isatty(2):
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
