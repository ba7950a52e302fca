"""Checks file systems: whether a path can be read, whether there is room, and which are mounted over a network.

The checks read the first 4 KiB of a file, the first entries of a folder, and only the status of anything else.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable
from typing import Final

from otel_fr.checks.model import Outcome, Status
from otel_fr.sizes import size_text

READ: Final = 4_096
"""Bytes read from a file, as in nvidia-resiliency-ext: a page, which the server or disk must provide."""
ENTRIES: Final = 5
"""Entries read from a folder. The kernel reads some hundred at once."""
LUSTRE_HEALTH: Final = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")
"""Lustre's health files. The second is from before Lustre 2.10."""
_LUSTRE_HEALTHY: Final = "healthy"
NETWORK: Final = frozenset({"nfs", "nfs4", "lustre"})
"""Types of file systems that may not answer, as in nvidia-resiliency-ext."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def check_path(path: str) -> Outcome:
    """Check that a little can be read at ``path``. May block forever."""
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
    """Check Lustre's own health file, if it exists."""
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


def check_space(path: str, needed: int) -> Outcome:
    """Check that this user may still write ``needed`` bytes at ``path``. May block forever."""
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


def network_mounts(lines: Iterable[str]) -> list[str]:
    """Return the mount points of network file systems, each once.

    Args:
        lines: lines of /proc/self/mounts (proc(5)): device, mount point, type, ... Blanks are octal escapes.
    """
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) >= 3 and fields[2] in NETWORK:
            found.append(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1]))
    return list(dict.fromkeys(found))


def read_mounts() -> list[str]:
    """Return the network file systems that this process sees, or none if the list cannot be read."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            return network_mounts(file)
    except OSError:
        return []
