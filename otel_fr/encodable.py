"""Text that UTF-8 can encode: lone surrogates are replaced where text enters.

Python makes lone surrogates of bytes that are not UTF-8 in paths, arguments and environment variables (PEP 383), and
of the JSON escapes ``\\ud800`` to ``\\udfff`` that are not pairs. No file, database, metric or protobuf message can
hold one.
"""

from __future__ import annotations

import json
from typing import Any

REPLACEMENT = "?"
"""What Python's ``errors="replace"`` encodes a lone surrogate as."""


def encodable(text: str) -> str:
    """The text with each lone surrogate replaced by `REPLACEMENT`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def load_json(text: str | bytes) -> Any:
    """As `json.loads`, but bytes are UTF-8 only (what is not becomes U+FFFD), and all texts are `encodable`.

    Raises:
        ValueError: it is not JSON (`json.JSONDecodeError`), or has a number of too many digits.
        RecursionError: it is nested too deep.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    data = json.loads(encodable(text))
    if "\\ud" in text or "\\uD" in text:  # escapes of surrogates, which may be pairs
        data = json.loads(encodable(json.dumps(data, ensure_ascii=False)))
    return data
