"""Processes that tests know by what they were given: their command line or a variable of their environment."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from otel_fr.ring import RingReader


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def processes_with(text: str, file: str = "cmdline") -> list[int]:
    """Ids of the processes whose command line has the text, or with ``environ`` their environment as they began."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if text.encode() in (entry / file).read_bytes():
                    found.append(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    """Ids of the processes that this one has started and not waited for."""
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def is_gone(pid: int) -> bool:
    """The process has ended, though perhaps nobody has waited for it."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def monitor_of(pid: int, rings: Path) -> int:
    """The process id of the monitor of the rank with that id; 0: there is none yet.

    Raises:
        ValueError: the rank has no ring in this folder.
    """
    (ring,) = rings.glob(f"*/*-{pid}.ring")
    reader = RingReader.open(ring)
    try:
        return reader.monitor_pid
    finally:
        reader.close()
