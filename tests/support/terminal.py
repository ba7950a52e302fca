"""A command at a terminal of a given size, driven by keys. Tests see its text without colours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence

from tests.support.waiting import PATIENCE, wait_for

_CONTROL = re.compile(rb"\x1b\][^\x07]*\x07|\x1b[\[(][0-9;?]*[A-Za-z]|\r")


class Terminal:
    """A process and its terminal.

    Attributes:
        output: all bytes that the process has written so far.
    """

    def __init__(
        self, command: Sequence[str], *, columns: int = 80, lines: int = 24, env: Mapping[str, str] = os.environ
    ) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        merged = {**env, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            merged.pop(name, None)
        self.process = subprocess.Popen(
            command, stdin=side, stdout=side, stderr=side, env=merged, start_new_session=True
        )
        self.before = termios.tcgetattr(self._main)
        os.close(side)
        self.output = b""

    def press(self, keys: str) -> None:
        """Send keys as a terminal would."""
        os.write(self._main, keys.encode())

    def text(self, since: int = 0) -> str:
        """Return the output after byte ``since``, without control sequences."""
        self._read()
        return _CONTROL.sub(b"", self.output[since:]).decode(errors="replace")

    def shows(self, text: str, since: int = 0) -> bool:
        """Wait until the text is written, with any space between its words."""
        wanted = " ".join(text.split())
        return bool(wait_for(lambda: wanted in " ".join(self.text(since).split())))

    def mode(self) -> object:
        """Return the terminal's settings (tcgetattr)."""
        return termios.tcgetattr(self._main)

    def ended(self) -> int:
        """Wait for the process's end, and return its exit status."""
        assert wait_for(lambda: self.text() is not None and self.process.poll() is not None), self.text()
        self._read()
        return self.process.wait(PATIENCE)

    def _read(self) -> None:
        while select.select([self._main], [], [], 0.02)[0]:
            with contextlib.suppress(OSError):  # the process has ended
                if data := os.read(self._main, 65_536):
                    self.output += data
                    continue
            return

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)


@contextlib.contextmanager
def terminal(
    command: Sequence[str], *, columns: int = 80, lines: int = 24, env: Mapping[str, str] = os.environ
) -> Iterator[Terminal]:
    """Run a command at a terminal, and kill it at the end of the block if it still runs."""
    found = Terminal(command, columns=columns, lines=lines, env=env)
    try:
        yield found
    finally:
        found.close()
