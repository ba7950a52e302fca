"""Removal of stale ring files: the rank has ended, and its monitor was killed before it could remove them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

KEEP_SECONDS = 7 * 86_400.0
"""How long such a file is kept for inspection, from its modification time. Writes through a mapping may not change that
time, so the file of a long job can be much newer than it seems."""

_NAME = re.compile(r"rank\d+-(\d+)\.ring(\.\d+)?(\.stacks)?")


def remove_stale_rings(folder: Path, now: float | None = None) -> int:
    """Remove old files of ended ranks from a ring folder; returns how many. Never raises `OSError`.

    Args:
        now: Unix time.
    """
    now = time.time() if now is None else now
    removed = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            with contextlib.suppress(OSError):
                if match and now - path.stat().st_mtime > KEEP_SECONDS and not _alive(int(match[1])):
                    path.unlink()
                    removed += 1
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
