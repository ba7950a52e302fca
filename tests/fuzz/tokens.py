"""The tokens of the fuzzed collector: picks a request's token, and changes the tokens file."""

from __future__ import annotations

import random
from pathlib import Path

_ALL, _JOBS, _READ, _READ_JOBS, _REVOKED = (
    f"{name}-0123456789abcdef" for name in ("all", "jobs", "read", "some", "lost")
)
"""Tokens for everything; to send for some jobs; to read; to read some jobs; for everything while it is in the file."""
_KNOWN = f"{_ALL} read,write *\n{_JOBS} write fz0\n{_READ} read *\n{_READ_JOBS} read fz0\n"
_FILES = (_KNOWN, f"{_KNOWN}{_REVOKED} read,write *\n", f"{_KNOWN}{_REVOKED} read,write fz1\n", "short x *\n", "\udcff")
"""Contents of the tokens file. The last two are invalid: with them the tokens before stay in force."""


def pick_token(rnd: random.Random) -> str:
    """Return the token of one request; "": none."""
    if rnd.random() < 0.7:
        return _ALL
    return rnd.choice((_JOBS, _JOBS, _READ, _READ_JOBS, _REVOKED, _REVOKED, "unknown", ""))


def write_tokens(rnd: random.Random, path: Path) -> None:
    """Change the tokens file, or create it."""
    text = rnd.choice(_FILES) if path.exists() else _KNOWN
    path.write_bytes(text.encode(errors="surrogateescape"))
