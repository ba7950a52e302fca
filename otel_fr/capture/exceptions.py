"""Records uncaught exceptions of the main thread and of other threads, before any other exception hook runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from traceback import TracebackException
from types import TracebackType
from typing import Any, Final

from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.sites import Sites
from otel_fr.communication_errors import type_name

_MAX_STACK: Final = 6000
"""Characters kept from the end of a stack, where the innermost frames are. The ring keeps 8 kB of an exception."""
_MAX_THREAD_STACK: Final = 2500
"""The same for a thread's exception. The ring keeps 4 kB of it."""
_MAX_MESSAGE: Final = 1000
_MAX_ORIGIN: Final = 120
"""Characters of the text of an exception's origin, which is shown in the exception's own first line."""
_MAX_DIFFERENT: Final = 64
"""How many different exceptions of threads are recorded: a service thread may be restarted and fail forever."""
_MAIN: Final = "MainThread"
_PROGRAM: Final = ("<module>", "_run_module_as_main")
"""Names of a running program's outermost function, the second with ``python -m``."""
_BARE_THREAD: Final = "in thread started by"
"""Part of the message that ``sys.unraisablehook`` receives when an exception ends a thread of
``_thread.start_new_thread``."""

RecordException = Callable[[Mapping[str, object]], None]


class ExceptionHooks:
    """Replaces ``sys.excepthook``, ``threading.excepthook`` and ``sys.unraisablehook``. Each calls the former hook.

    Only an exception that the interpreter itself passes to ``sys.excepthook`` after the program has ended in the main
    thread ends the process, and none if it is interactive. Code that catches an exception may also call this hook, and
    so may a thread.

    Attributes:
        recorded: True once the main thread's exception was recorded.
    """

    def __init__(
        self, record: RecordException, record_of_thread: RecordException, sites: Sites, replaced: Replacements
    ) -> None:
        """Both ``record`` functions take a mapping with the keys type, message, stack, site and thread. Only the first
        call of ``record`` counts."""
        self.recorded = False
        self._record = record
        self._record_of_thread = record_of_thread
        self._seen: set[tuple[object, ...]] = set()
        self._sites = sites
        self._on = True
        self._own_hook: Callable[..., Any] | None = None
        replaced.put(Attribute.EXCEPTHOOK, sys, self._hook)
        replaced.put(Attribute.THREAD_HOOK, threading, self._thread_hook)
        replaced.put(Attribute.UNRAISABLE_HOOK, sys, self._unraisable_hook)

    def _hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
            is_main = threading.get_ident() == threading.main_thread().ident
            if is_main and value is _last_value() and not _is_interactive() and not _is_program_running():
                self.note(value, trace)
            else:
                self.note_of_thread(value, trace, None)
            return previous(kind, value, trace)

        self._own_hook = excepthook
        return excepthook

    def _thread_hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def thread_hook(args: Any) -> Any:
            if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
                self.note_of_thread(args.exc_value, args.exc_traceback, args.thread)
            return previous(args)

        return thread_hook

    def _unraisable_hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def unraisable_hook(args: Any) -> Any:
            if args.exc_value is not None and _BARE_THREAD in (args.err_msg or ""):
                self.note_of_thread(args.exc_value, args.exc_traceback, None)
            return previous(args)

        return unraisable_hook

    def note(self, value: BaseException, trace: TracebackType | None) -> None:
        """Record the exception that ends the main thread. Never raises."""
        if not self._on:
            return
        try:
            self._record(self._values(value, trace, _MAX_STACK) | {"thread": _MAIN})
            self.recorded = True
        except Exception:  # noqa: BLE001, S110 - the user's exception is what matters
            pass

    def note_of_thread(
        self, value: BaseException, trace: TracebackType | None, thread: threading.Thread | None
    ) -> None:
        """Record an exception that does not end the process. Never raises.

        Args:
            thread: the thread that raised it; None: the current thread.
        """
        if not self._on or len(self._seen) >= _MAX_DIFFERENT:
            return
        try:
            name = (thread or threading.current_thread()).name
            values = self._values(value, trace, _MAX_THREAD_STACK) | {"thread": name}
            # A thread's hook may pass the exception to sys.excepthook, and a similar thread may raise it again.
            key = (values["type"], values["site"])
            if key not in self._seen:
                self._seen.add(key)
                self._record_of_thread(values)
        except Exception:  # noqa: BLE001, S110 - the user's exception is what matters
            pass

    def _values(self, value: BaseException, trace: TracebackType | None, max_stack: int) -> dict[str, object]:
        told = TracebackException(type(value), value, trace, compact=True)
        return {
            "type": type_name(type(value)),
            "message": _message(value, told)[:_MAX_MESSAGE],
            "stack": "".join(told.format())[-max_stack:],
            "site": self._site(trace),
        }

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
        """At exit, record the exception that Python has stored, if another hook may not have called otel-fr's hook.

        Consoles (`code.interact`, IPython's) and libraries in C also store exceptions that do not end the process.
        """
        value = _last_value()
        is_told = self.recorded or getattr(sys, "excepthook", None) is self._own_hook
        if not is_told and isinstance(value, BaseException) and not _is_interactive():
            self.note(value, value.__traceback__)

    def stop(self) -> None:
        """Stop recording. The hooks may remain if other hooks call them."""
        self._on = False


def described(value: BaseException) -> str:
    """Return a text such as ``"ValueError: no loss (from FloatingPointError: loss is nan)"``."""
    return f"{type_name(type(value))}: {_message(value, TracebackException(type(value), value, None, limit=0))}"


def _message(value: BaseException, told: TracebackException) -> str:
    """Return an exception's text. Its first line also names the exception's origin, if there is one (`_origin`).

    Args:
        told: made from ``value``. It has called each exception's ``__str__``, which the program may define, only once,
            and has handled its errors.
    """
    text, (origin, said) = str(told).strip(), _origin(value, told)
    if origin is value:
        return text
    first, end, rest = text.partition("\n")
    said = " ".join(said.split())[:_MAX_ORIGIN]
    why = f"(from {type_name(type(origin))}{said and f': {said}'})"
    return f"{first} {why}{end}{rest}".strip()


def _origin(value: BaseException, told: TracebackException) -> tuple[BaseException, str]:
    """Return the first exception in the chain that a traceback shows for this one, and its text. Return the exception
    itself if there is no other.

    A KeyboardInterrupt has no origin: the exception that was being handled only shows where the program was.
    """
    while not isinstance(value, KeyboardInterrupt):
        is_raised_from = value.__cause__ is not None or value.__suppress_context__
        earlier = value.__cause__ if is_raised_from else value.__context__
        before = told.__cause__ if is_raised_from else told.__context__
        if earlier is None or before is None:  # ``before`` is None where a cycle of exceptions closes
            break
        value, told = earlier, before
    return value, str(told)


def _is_interactive() -> bool:
    """Return True if no exception ends the process: at Python's prompt, with ``python -i``, and in a notebook."""
    return bool(sys.flags.interactive) or (hasattr(sys, "ps1") and not hasattr(sys.modules["__main__"], "__file__"))


def _is_program_running() -> bool:
    """Return True if the main thread's program runs: then something only shows the exception, such as a console."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name in _PROGRAM


def _last_value() -> object:
    """Return the uncaught exception that the interpreter prints or has printed, or None."""
    return getattr(sys, "last_value", None)
