"""Removes stale ring files of ended ranks whose monitors were killed before they could remove them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from otel_fr.monitor.control.node import is_free
from otel_fr.ring import ProcessState, RingFormatError, RingReader, pid_namespace
from otel_fr.torch_recorder import SOCKET_KEY

KEEP_SECONDS = 7 * 86_400.0
"""How long a file is kept for inspection if the rank did not end cleanly, counted from its modification time. Writes
through a mapping may not change this time, so the file of a long job can be much newer than it seems."""

_NAME = re.compile(r"rank\d+-(\d+)\.ring(\.\d+)?(\.stacks|\.recorder)?")


def keep_ring(ring: Path) -> None:
    """Keep other monitors from removing this ring and the files beside it, until this process ends.

    Containers may share a folder of rings. A rank of another container seems to have ended, because its pid is unknown.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(ring, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)


def remove_stale_rings(folder: Path, now: float | None = None) -> int:
    """Remove files of ended ranks from a ring folder: rings that show no fault, and all old files.

    Returns the number of removed rings and old files. Never raises `OSError`.

    Args:
        now: Unix time.
    """
    now = time.time() if now is None else now
    removed = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            with contextlib.suppress(OSError):
                if match is None or _alive(int(match[1])):
                    continue
                if now - path.stat().st_mtime > KEEP_SECONDS:
                    if is_free(path.with_name(path.name.removesuffix(match[3] or ""))):
                        path.unlink()
                        removed += 1
                elif match[3] is None and _ended_cleanly(path):
                    path.unlink()
                    for kind in (".stacks", ".recorder"):
                        path.with_name(path.name + kind).unlink(missing_ok=True)
                    removed += 1
    return removed


def remove_beside(meta: Mapping[str, object]) -> None:
    """Remove the files beside a ring that only its rank's process uses. ``meta``: the ring's meta."""
    for key in ("stack_file", SOCKET_KEY):
        file = meta.get(key)
        if isinstance(file, str) and file:
            with contextlib.suppress(OSError):
                os.unlink(file)


def _ended_cleanly(ring: Path) -> bool:
    """Return True if the rank announced a clean end and its monitor has ended: the ring shows no fault."""
    try:
        with RingReader.open(ring) as reader:
            space = pid_namespace()
            # The pids of another container's ring belong to other processes here.
            is_of_here = bool(space) and reader.meta.get("pid_namespace") == space
            return is_of_here and reader.state == ProcessState.CLEAN and not _alive(reader.monitor_pid)
    except RingFormatError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
