"""Names in the ring's tables. A name is a word (length and checksum) and a bounded text. Readers check it."""

from __future__ import annotations

import mmap
import zlib


def text_bytes(text: str, most: int) -> bytes:
    """Return a text as UTF-8, cut between characters to at most ``most`` bytes."""
    raw = text[:most].encode("utf-8", "backslashreplace")
    return raw if len(raw) <= most else raw[:most].decode("utf-8", "ignore").encode()


def name_word(text: bytes) -> int:
    """Return the word of a name (docs/reference/ring-format.md)."""
    return (len(text) + 1) << 32 | zlib.crc32(text)


def read_name(mapping: mmap.mmap, word: int, at: int, most: int) -> str | None:
    """Return the name with that word, of at most ``most`` bytes from offset ``at``, or None if missing or damaged."""
    length = (word >> 32) - 1
    if not 0 <= length <= most:
        return None
    text = mapping[at : at + length]
    return text.decode("utf-8", "replace") if zlib.crc32(text) == word & 0xFFFFFFFF else None
