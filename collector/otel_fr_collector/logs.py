"""The collector's own log, on standard error: text or JSON lines, without secrets."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any

from otel_fr.printable import one_line, printable, shortened
from otel_fr.redaction import clean
from otel_fr_collector.output import Unblocked

MAX_MESSAGE, MAX_STACK = 8_192, 65_536
"""Characters of a message, and of a stack: both may quote what a client or a receiver sent."""


class _Bounded(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's own name
        return shortened(super().formatException(ei), MAX_STACK)


class _Text(_Bounded):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's own name
        record.message = one_line(shortened(record.message, MAX_MESSAGE))
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return clean(printable(super().format(record)))


class _Json(_Bounded):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(printable(shortened(record.getMessage(), MAX_MESSAGE))),
        }
        if record.exc_info:
            line["exception"] = clean(printable(self.formatException(record.exc_info)))
        return json.dumps(line, ensure_ascii=False)


def set_up(form: str, level: str, out: Unblocked) -> None:
    """Log to a stream.

    Args:
        form: ``text`` or ``json``.
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    handler = logging.StreamHandler(out)
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_header)


def _is_no_header(record: logging.LogRecord) -> bool:
    """False for the message that grpcio logs, with a stack, for each header that is not UTF-8."""
    return record.msg != "Invalid encoding on %s"
