"""Whether a path can be read: a file's first 4 KiB, a folder's first entries, and the status of anything else."""

from __future__ import annotations

import itertools
import os
import stat
from typing import Final

from otel_fr.checks.model import Outcome, Status

READ: Final = 4_096
"""Bytes of a file, as in nvidia-resiliency-ext: a page, which its server or disk must provide."""
ENTRIES: Final = 5
"""Of a folder; the kernel reads some hundred at once."""
LUSTRE_HEALTH: Final = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")
"""Where Lustre says how it is; the second one before Lustre 2.10."""
_LUSTRE_HEALTHY: Final = "healthy"


def check_path(path: str) -> Outcome:
    """Read a little of what is at ``path``. May block for ever."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            with open(path, "rb", buffering=0) as file:
                size = len(file.read(READ))
            return Outcome(Status.OK, f"a file, {size} bytes read")
        if stat.S_ISDIR(mode):
            with os.scandir(path) as entries:
                count = sum(1 for _ in itertools.islice(entries, ENTRIES))
            return Outcome(Status.OK, f"a folder, {count} entries read")
    except OSError as error:
        return Outcome(Status.FAILED, error.strerror or str(error))
    return Outcome(Status.OK, "there")


def check_lustre(lustre: str) -> Outcome:
    """What Lustre's own health file says, if it is there."""
    try:
        with open(lustre, encoding="utf-8", errors="replace") as file:
            text = file.read(READ).strip()
    except FileNotFoundError:
        return Outcome(Status.SKIPPED, "no such file here")
    except OSError as error:
        return Outcome(Status.FAILED, error.strerror or str(error))
    # A server may also say "NOT HEALTHY", "LBUG" or "device ... reported unhealthy".
    good = text == _LUSTRE_HEALTHY
    return Outcome(Status.OK if good else Status.FAILED, f"it says {' '.join(text.split())[:200]!r}")
