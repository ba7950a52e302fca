"""The tokens of the collector that is fuzzed: which a request uses, and how their file changes."""

from __future__ import annotations

import random
from pathlib import Path

_ALL, _JOBS, _READ, _READ_JOBS, _REVOKED = (
    f"{name}-0123456789abcdef" for name in ("all", "jobs", "read", "some", "lost")
)
"""May do everything; send for some jobs; read; read some jobs; everything, while it is in the file."""
_KNOWN = f"{_ALL} read,write *\n{_JOBS} write fz0\n{_READ} read *\n{_READ_JOBS} read fz0\n"
_FILES = (_KNOWN, f"{_KNOWN}{_REVOKED} read,write *\n", f"{_KNOWN}{_REVOKED} read,write fz1\n", "short x *\n", "\udcff")
"""The last two cannot be used: those before stay in force."""


def pick_token(rnd: random.Random) -> str:
    """Of one request; "": none."""
    if rnd.random() < 0.7:
        return _ALL
    return rnd.choice((_JOBS, _JOBS, _READ, _READ_JOBS, _REVOKED, _REVOKED, "unknown", ""))


def write_tokens(rnd: random.Random, path: Path) -> None:
    """Change the file, or make it."""
    text = rnd.choice(_FILES) if path.exists() else _KNOWN
    path.write_bytes(text.encode(errors="surrogateescape"))
