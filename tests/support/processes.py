"""Finds processes by their command line or environment, and asks what became of them."""

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
    """Return ids of the processes with this text in their command line, or with ``environ`` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if text.encode() in (entry / file).read_bytes():
                    found.append(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    """Return the ids of processes that the process has started and not waited for."""
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def is_gone(pid: int) -> bool:
    """Return True if the process has ended, even if nobody has waited for it."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def monitor_of(pid: int, rings: Path) -> int:
    """Return the process id of a rank's monitor; 0: it has not started yet. ``pid``: the rank's process.

    Raises:
        ValueError: the rank has no ring in this folder.
    """
    (ring,) = rings.glob(f"*/*-{pid}.ring")
    reader = RingReader.open(ring)
    try:
        return reader.monitor_pid
    finally:
        reader.close()
