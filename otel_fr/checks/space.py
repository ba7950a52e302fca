"""Whether a file system has room, in bytes and in files."""

from __future__ import annotations

import os

from otel_fr.checks.model import Outcome, Status
from otel_fr.sizes import size_text


def check_space(path: str, needed: int) -> Outcome:
    """Whether this user may still write ``needed`` bytes at ``path``. May block for ever."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Outcome(Status.FAILED, error.strerror or str(error))
    free = found.f_bavail * found.f_frsize
    text = f"{size_text(free)} free, {size_text(needed)} needed"
    if found.f_flag & os.ST_RDONLY:
        return Outcome(Status.FAILED, f"mounted read-only; {text}")
    if found.f_files and not found.f_favail:
        return Outcome(Status.FAILED, f"no file can be added: all {found.f_files} inodes are in use; {text}")
    return Outcome(Status.OK if free >= needed else Status.FAILED, text)
