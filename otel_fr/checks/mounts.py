"""The mounted network file systems. Reading the list of mounts touches none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

NETWORK: Final = frozenset({"nfs", "nfs4", "lustre"})
"""Types of file systems that may not answer, as in nvidia-resiliency-ext."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_mounts(lines: Iterable[str]) -> list[str]:
    """Where network file systems are mounted, each place once.

    Args:
        lines: of /proc/self/mounts (proc(5)): device, place, type, ...; blanks in a place are octal escapes.
    """
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) >= 3 and fields[2] in NETWORK:
            found.append(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1]))
    return list(dict.fromkeys(found))


def read_mounts() -> list[str]:
    """The network file systems that this process sees; none where the list cannot be read."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            return network_mounts(file)
    except OSError:
        return []
