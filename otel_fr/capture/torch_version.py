"""Reads torch's version. Imports only the standard library."""

from __future__ import annotations

import sys


def release() -> tuple[int, int]:
    """Return the major and minor number of the imported torch's version; zeros if they cannot be read."""
    try:
        major, minor = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return 0, 0
