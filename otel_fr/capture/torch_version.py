"""Reads torch's version. Imports only the standard library."""

from __future__ import annotations


def release(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version of torch; zeros if they cannot be read."""
    try:
        major, minor = version.split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return 0, 0
