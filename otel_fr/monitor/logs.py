"""The monitor's log on standard error: few lines, as ``otel-fr[rank N]: ...``.

A program that captures a job's output reads until every process has closed the pipe, so the monitor must not keep
a pipe open after its rank has ended. It has no standard output. It keeps a standard error that is a terminal or a file,
and a pipe only while the rank is alive (`release_pipes`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from otel_fr.printable import one_line, shortened

MAX_MESSAGE = 2_000
"""Characters of a message: names, values of variables and what servers answer may be of any length."""
ENDPOINT_SECONDS = 60.0
"""Between two messages about an endpoint that does not answer."""
EXPLAIN_SECONDS = 8.0
"""How long the monitor's end waits for such a message: two endpoints are asked what they are."""

OnTrouble = Callable[[str, bool], bool]
"""Called for each message of an exporter, with the name of the exporter's thread, and whether its server does not know
the signal. Returns True if the message is not to be logged."""
_REFUSED = (grpc.StatusCode.UNIMPLEMENTED, 404, 405, "404", "405")
"""What exporters log as the answer of a server that does not know a signal, over gRPC and HTTP."""


class _EndpointHandler(logging.Handler):
    """Passes on one message a minute of OpenTelemetry's exporters, and calls ``on_trouble`` for each.

    What to say takes seconds to find out, so a thread does: whoever logs meanwhile would wait for this handler's lock.
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
        """Wait for a message that is not written yet."""
        if self._saying is not None:
            self._saying.join(EXPLAIN_SECONDS)

    def _say(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        with contextlib.suppress(Exception):  # the exporter's own message says something, too
            said = self._explain(said)
        if not said:
            return
        record.msg, record.args = said, ()
        record.exc_info = None
        record.exc_text = None
        self._target.handle(record)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged meanwhile."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class _Formatter(logging.Formatter):
    """Each message is one line that a terminal does not act on: names and errors of a job may contain anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        record.message = one_line(shortened(record.message, MAX_MESSAGE))
        return super().formatMessage(record)


class _Once(logging.Filter):
    """Passes on one message: the SDK logs one for each bad item of a variable, each time that it reads the variable."""

    _is_first = True

    def filter(self, _: logging.LogRecord) -> bool:
        is_first, self._is_first = self._is_first, False
        return is_first


def configure(rank: int) -> logging.Handler:
    """Send warnings and errors of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(f"otel-fr[rank {rank}]: %(message)s"))
    for name in ("opentelemetry.sdk.resources", "opentelemetry.util.re"):
        logging.getLogger(name).addFilter(_Once())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
    return handler


def watch_exporters(handler: logging.Handler, on_trouble: OnTrouble, explain: Callable[[str], str] = str) -> None:
    """Limit the exporters' own messages, and take them as a sign that an endpoint does not answer.

    An exporter retries for up to ten seconds before it returns a failure, but logs a warning at once.

    Args:
        on_trouble: called for each message.
        explain: what to say in place of an exporter's message; "": nothing.
    """
    for name in ("opentelemetry", "urllib3", "requests", "otel_fr.monitor.telemetry.export"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers[:] = [_EndpointHandler(handler, on_trouble, explain)]
    for name in ("grpc.exporter", "http.trace_exporter", "http._log_exporter", "http.metric_exporter"):
        # The SDK drops equal messages of the same minute, which would hide that the endpoint does not answer.
        logging.getLogger(f"opentelemetry.exporter.otlp.proto.{name}").filters.clear()


def close_input_and_output() -> None:
    """Standard input and output become /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 2:
        os.close(null)


def release_pipes() -> None:
    """Standard error becomes /dev/null, unless it is a terminal or a file."""
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
