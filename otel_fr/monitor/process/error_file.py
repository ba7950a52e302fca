"""Reads the file in which torchelastic's ``@record`` stores the exception that ends a rank."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from otel_fr.encodable import load_json
from otel_fr.rank_report import MAX_EXCEPTION, MAX_STACK, ReportedException
from otel_fr.stacks import site_of

VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"
"""Variable with the file's path, in the environment of each rank that torchrun starts."""
READ_SECONDS: Final = 0.5
"""Longest wait for the file: it may be on a file server."""
_MAX_BYTES: Final = 4 << 20


def parse(text: str) -> ReportedException | None:
    """Return the exception in such a file, or None.

    Source: ``ErrorHandler.record_exception`` in torch/distributed/elastic/multiprocessing/errors/error_handler.py.
    """
    try:
        content = load_json(text)
    except (ValueError, RecursionError):
        return None
    found = content.get("message") if isinstance(content, dict) else None
    extra = found.get("extraInfo") if isinstance(found, dict) else None
    message = found.get("message") if isinstance(found, dict) else found
    if not isinstance(message, str) or not message:
        return None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    stack = stack[:MAX_STACK] if isinstance(stack, str) else ""
    kind, separator, rest = message.partition(": ")
    if not separator or not kind.replace(".", "_").isidentifier():
        kind, rest = "", message
    return ReportedException(type=kind, message=rest[:MAX_EXCEPTION], stack=stack, site=site_of(stack))


def read(path: str, wait: float = READ_SECONDS) -> ReportedException | None:
    """Return the exception in the file at ``path``. None: there is none, or it cannot be read in time."""
    found: list[ReportedException | None] = []
    if not path:
        return None

    def run() -> None:
        try:
            with Path(path).open("rb") as file:
                found.append(parse(file.read(_MAX_BYTES).decode("utf-8", "replace")))
        except OSError:
            return

    thread = threading.Thread(target=run, name="otel-fr-error-file", daemon=True)
    thread.start()
    thread.join(wait)
    return found[0] if found else None
