"""What the monitor says on standard error: little, as ``otel-fr[rank N]: ...``.

Whoever captures the output of a job waits for every holder of the pipe to let go of it, so the monitor must
not keep a pipe open after its rank. It has no standard output at all; a terminal or a file as standard error it keeps;
a pipe it keeps only while the rank lives (`let_go_of_pipes`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Callable

ENDPOINT_SECONDS = 60.0
"""Between two lines about an endpoint that does not answer."""


class _EndpointHandler(logging.Handler):
    """What OpenTelemetry's exporters log: one line a minute, and a hint that the endpoint is in trouble."""

    def __init__(self, target: logging.Handler, on_trouble: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._target = target
        self._on_trouble = on_trouble
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        self._on_trouble(record.threadName or "")
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + ENDPOINT_SECONDS
        record.exc_info = None
        record.exc_text = None
        self._target.handle(record)


def configure(rank: int) -> logging.Handler:
    """Send warnings and errors of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"otel-fr[rank {rank}]: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
    return handler


def watch_exporters(handler: logging.Handler, on_trouble: Callable[[str], None]) -> None:
    """Thin out the exporters' own lines and learn from them that an endpoint is in trouble.

    An exporter retries for up to ten seconds before it says that it failed; its first warning comes at once.

    Args:
        on_trouble: called with the name of the exporter's thread.
    """
    for name in ("opentelemetry", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers[:] = [_EndpointHandler(handler, on_trouble)]
    for name in ("grpc.exporter", "http.trace_exporter", "http._log_exporter"):
        # The SDK drops equal lines of the same minute, which would hide the trouble from us.
        logging.getLogger(f"opentelemetry.exporter.otlp.proto.{name}").filters.clear()


def close_input_and_output() -> None:
    """Standard input and output become /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 2:
        os.close(null)


def let_go_of_pipes() -> None:
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
