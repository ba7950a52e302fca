"""Text that UTF-8 can encode. Lone surrogates are replaced where text enters otel-fr.

Python makes lone surrogates from bytes that are not UTF-8 in paths, arguments and environment variables (PEP 383), and
from JSON escapes ``\\ud800`` to ``\\udfff`` that are not pairs. No file, database, metric or protobuf message can hold
one.
"""

from __future__ import annotations

import json
from typing import Any

REPLACEMENT = "?"
"""The character that Python's ``errors="replace"`` writes for a lone surrogate."""


def encodable(text: str) -> str:
    """The text with each lone surrogate replaced by `REPLACEMENT`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def load_json(text: str | bytes) -> Any:
    """Like `json.loads`, but bytes are always UTF-8 (invalid ones become U+FFFD), and all texts are `encodable`.

    Raises:
        ValueError: the text is not JSON (`json.JSONDecodeError`), or has a number of too many digits.
        RecursionError: it is nested too deep.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    data = json.loads(encodable(text))
    if "\\ud" in text or "\\uD" in text:  # escapes of surrogates, which may be pairs
        data = json.loads(encodable(json.dumps(data, ensure_ascii=False)))
    return data
