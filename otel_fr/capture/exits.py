"""Notes how the main thread calls ``sys.exit``: Python prints the message, and keeps neither that nor the line."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from otel_fr.capture.exceptions import described
from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.sites import Sites
from otel_fr.communication_errors import tells_of_stop

_MAX_MESSAGE: Final = 500
"""Characters: it shares 4 kB of the ring with everything else that describes the rank."""


class ExitHook:
    """Replaces ``sys.exit`` by a function that notes the call, and then calls the one before.

    A call ends the process only if nothing catches its exception, so what is noted counts once the interpreter ends.
    ``raise SystemExit`` is not seen.

    Attributes:
        message: what the newest call of the main thread passed, if it was neither a number nor None; else the exception
            that was being handled, if the status is an error's or the exception comes from Ctrl-C; else "".
        site: ``"file:line function"`` of that call; "" if its status was 0 or None, or there was no call.
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
            self.message = text[:_MAX_MESSAGE]
            frame = self._sites.user_frame(caller) or caller
            code = frame.f_code
            self.site = f"{code.co_filename}:{frame.f_lineno} {code.co_name}" if self.message or status else ""
        except Exception:  # noqa: BLE001, S110 - the program's exit is what matters
            pass

    def stop(self) -> None:
        """Stop noting; the hook may stay below another one."""
        self._on = False
