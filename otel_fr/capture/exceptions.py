"""Records the exception that ends the rank, before any other exception hook runs."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from otel_fr.capture.sites import Sites

_MAX_STACK: Final = 6000
"""Characters: the ring keeps 8 kB of an exception; the innermost frames are the end of the text."""
_MAX_MESSAGE: Final = 1000

RecordException = Callable[[Mapping[str, object]], None]


class ExceptionHooks:
    """Hooks in ``sys.excepthook`` and ``threading.excepthook``; each then calls the previous hook.

    Attributes:
        recorded: an exception of the main thread was recorded.
    """

    def __init__(self, record: RecordException, sites: Sites) -> None:
        """``record`` takes type, message, stack, site and thread; the first call counts."""
        self.recorded = False
        self._record = record
        self._sites = sites
        self._on = True
        previous = self._previous = sys.excepthook
        previous_thread = self._previous_thread = threading.excepthook

        def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
            self.note(value, trace, "MainThread")
            return previous(kind, value, trace)

        def thread_hook(args: Any) -> Any:
            if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
                self.note(args.exc_value, args.exc_traceback, getattr(args.thread, "name", "") or "")
            return previous_thread(args)

        self._hook = excepthook
        self._thread_hook = thread_hook
        sys.excepthook = excepthook
        threading.excepthook = thread_hook

    def note(self, value: BaseException, trace: TracebackType | None, thread: str) -> None:
        """Record an exception. Never raises."""
        if not self._on:
            return
        try:
            stack = "".join(traceback.format_exception(type(value), value, trace))
            name = type(value).__qualname__
            module = type(value).__module__
            self._record(
                {
                    "type": name if module in ("builtins", "__main__") else f"{module}.{name}",
                    "message": str(value)[:_MAX_MESSAGE],
                    "stack": stack[-_MAX_STACK:],
                    "site": self._site(trace),
                    "thread": thread,
                }
            )
            if thread == "MainThread":
                self.recorded = True
        except Exception:  # noqa: BLE001, S110 - the user's exception is what matters
            pass

    def _site(self, trace: TracebackType | None) -> str:
        best = last = ""
        while trace is not None:
            code = trace.tb_frame.f_code
            last = f"{code.co_filename}:{trace.tb_lineno} {code.co_name}"
            if not self._sites.is_library(code.co_filename):
                best = last
            trace = trace.tb_next
        return best or last

    def note_last(self) -> None:
        """At exit: record the exception that Python has stored, in case another hook did not call this one."""
        value = getattr(sys, "last_value", None)
        if not self.recorded and isinstance(value, BaseException):
            self.note(value, value.__traceback__, "MainThread")

    def abandon(self) -> None:
        """Stop recording, without removing the hooks."""
        self._on = False

    def close(self) -> None:
        """Remove the hooks, unless other hooks were installed after them."""
        self._on = False
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous
        if threading.excepthook is self._thread_hook:
            threading.excepthook = self._previous_thread
