"""Notes how the main thread calls ``sys.exit``. Python prints the message, but stores neither it nor the line."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from signal import Signals
from types import FrameType
from typing import Any, Final

from otel_fr.capture.exceptions import described
from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.sites import Sites
from otel_fr.communication_errors import STOP_SIGNALS, tells_of_stop

_MAX_MESSAGE: Final = 500
"""Characters. The message shares 4 kB of the ring with everything else that describes the rank."""


class ExitHook:
    """Replaces ``sys.exit`` by a function that notes the call, and then calls the former function.

    A call ends the process only if nothing catches its exception, so the notes count once the interpreter ends.
    ``raise SystemExit`` is not noticed.

    Attributes:
        message: describes the newest call of the main thread. It is the argument, if that was neither a number nor
            None. Else it is the exception that was being handled, if the status means an error or the exception comes
            from Ctrl-C or a launcher's signal. Else it is "". If the handler of a signal that stops jobs
            (`STOP_SIGNALS`) made the call, the signal comes first.
        site: ``"file:line function"`` of that call; "" if there was no call, or no message and status 0 or None.
    """

    def __init__(self, sites: Sites, replaced: Replacements) -> None:
        self.message = ""
        self.site = ""
        self._sites = sites
        self._on = True
        replaced.put(Attribute.EXIT, sys, self._hook)

    def _hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(previous)
        def exit_(*args: Any, **kwargs: Any) -> Any:
            self._note(args[0] if args else None, sys._getframe(1))
            return previous(*args, **kwargs)

        return exit_

    def _note(self, status: object, caller: FrameType) -> None:
        """Never raises."""
        if not self._on or threading.get_ident() != threading.main_thread().ident:
            return
        try:
            is_number = status is None or isinstance(status, int)
            handled = sys.exc_info()[1]
            text = "" if is_number else str(status)
            if is_number and handled is not None:
                handling = f"while handling {described(handled)}"
                text = handling if status or tells_of_stop(handling) else ""
            if signal := _handled_signal(caller):
                text = f"while handling {signal}{text and f': {text}'}"
            self.message = text[:_MAX_MESSAGE]
            frame = self._sites.user_frame(caller) or caller
            code = frame.f_code
            self.site = f"{code.co_filename}:{frame.f_lineno} {code.co_name}" if self.message or status else ""
        except Exception:  # noqa: BLE001, S110 - the program's exit is what matters
            pass

    def stop(self) -> None:
        """Stop noting calls. The hook may remain if another hook calls it."""
        self._on = False


def _handled_signal(frame: FrameType | None) -> str:
    """Return the name of the signal of `STOP_SIGNALS` whose handler runs in ``frame`` or further out, or "".

    Python calls a handler with the signal and the interrupted frame, which is also the handler's calling frame.
    """
    while frame is not None and frame.f_back is not None:
        code, values = frame.f_code, frame.f_locals
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        given: list[object] = []
        for value in (values.get(name) for name in code.co_varnames[:count]):
            given.extend(value if isinstance(value, tuple) else (value,))
        if any(one is frame.f_back for one in given):
            return next((Signals(one).name for one in given if isinstance(one, int) and one in STOP_SIGNALS), "")
        frame = frame.f_back
    return ""
