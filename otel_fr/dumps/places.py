"""Finds the flight-recorder files of this user's runs if nothing else is configured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

FILES = "otel_fr_*"
"""Pattern of the names of ranks' files."""


def runs_folder(env: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/otel-fr`` or ``~/.cache/otel-fr``. Each job has a folder for its files there."""
    cache = env.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path(os.path.expanduser("~")) / ".cache"
    return base / "otel-fr"


def newest_folder(env: Mapping[str, str] = os.environ) -> tuple[Path, float] | None:
    """The folder with the newest file, and when the file was written (Unix seconds). None: there is no file.

    Looks in ``OTEL_FR_DUMP_DIR`` if it is set, otherwise in the folders of `runs_folder`.
    """
    given = env.get("OTEL_FR_DUMP_DIR", "").strip()
    folders = [Path(given)] if given else []
    if not given:
        with contextlib.suppress(OSError):
            folders = list(runs_folder(env).iterdir())
    found: tuple[Path, float] | None = None
    for folder in folders:
        for file in folder.glob(FILES):
            with contextlib.suppress(OSError):
                written = file.stat().st_mtime
                if found is None or written > found[1]:
                    found = folder, written
    return found
