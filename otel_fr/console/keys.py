"""Keys pressed at a terminal, read without waiting for Enter and without showing them."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator

_ESCAPED = {
    b"[A": "up", b"[B": "down", b"OA": "up", b"OB": "down", b"[5~": "page up", b"[6~": "page down",
    b"[H": "home", b"[F": "end", b"OH": "home", b"OF": "end", b"[1~": "home", b"[4~": "end",
    b"[D": "back", b"OD": "back", b"[C": "enter", b"OC": "enter",
}  # fmt: skip
"""The bytes that terminals send after Escape for special keys (xterm and similar)."""
_PLAIN = {
    b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back", b" ": "page down", b"k": "up", b"j": "down",
    b"u": "back", b"g": "home", b"G": "end", b"b": "page up",
}  # fmt: skip
ESCAPE_SECONDS = 0.05
"""Seconds in which the rest of a key's bytes must arrive: over a slow connection they arrive one by one."""


class Keys:
    """The keys of one terminal; see `reading`."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def wait(self, seconds: float) -> str | None:
        """Return the next key: a name such as ``"up"``, ``"enter"``, ``"back"``, or a character. None: no key came.

        Raises:
            EOFError: the terminal is gone.
        """
        if not self._ready(seconds):
            return None
        first = self._read(1)
        if first != b"\x1b":
            return _PLAIN.get(first) or first.decode(errors="replace")
        rest = b""
        while len(rest) < 4 and self._ready(ESCAPE_SECONDS):
            rest += self._read(1)
            if rest in _ESCAPED:
                return _ESCAPED[rest]
        return "back" if not rest else ""

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._handle], [], [], seconds)[0])

    def _read(self, size: int) -> bytes:
        data = os.read(self._handle, size)
        if not data:
            raise EOFError("the terminal is gone")
        return data


@contextlib.contextmanager
def reading() -> Iterator[Keys | None]:
    """Provide the keys of standard input, or None if it is not a terminal. Restores the terminal's settings."""
    if not sys.stdin.isatty():
        yield None
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)  # Ctrl-C still interrupts
        yield Keys(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
