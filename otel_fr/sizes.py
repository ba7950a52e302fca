"""Sizes as users write and read them: ``64MiB`` is 2**26 bytes, ``64MB`` is 64,000,000.

Imports nothing but the standard library.
"""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*(?:([KMGT])(I?))?B?\s*", re.ASCII)
_PREFIXES: Final = "KMGT"


def parse_size(text: str) -> int:
    """Return the bytes of ``1048576``, ``64MiB``, ``1.5 GB``, ``2T``.

    Raises:
        ValueError: the text is not a size above 0.
    """
    found = _SIZE.fullmatch(text.upper())
    power = 0 if found is None or not found[2] else 1 + _PREFIXES.index(found[2])
    if found is None or (size := int(float(found[1]) * (1024 if found[3] else 1000) ** power)) < 1:
        raise ValueError(f"{text!r} is not a size such as 64MiB or 2GB")
    return size


def size_text(size: int) -> str:
    """``"4.0 GiB"``."""
    for power in range(len(_PREFIXES), 0, -1):
        if size >= (unit := 1024**power):
            return f"{size / unit:.1f} {_PREFIXES[power - 1]}iB"
    return f"{size} bytes"
