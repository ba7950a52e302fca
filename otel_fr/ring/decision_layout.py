"""The ring's section of decisions: offsets and packers. docs/reference/ring-format.md says how rows are written.

A decision whose value differs from the one before it under the same name has a row; it holds until the next one.
"""

from __future__ import annotations

import struct
from typing import Final

READY: Final = 1
"""First word of the section once it is written: its format."""

# The head: indexes of 8-byte words from the start of the section.
WORD_READY: Final = 0
WORD_NEWEST: Final = 1
WORD_NAMES: Final = 2
WORD_UNTRACKED: Final = 3
WORD_FAILURES: Final = 4
HEAD_SIZE: Final = 64

NAMES: Final = 64
"""Different names of decisions. A program has a dozen; one that makes names up must not fill the memory."""
NAME_SIZE: Final = 128
MAX_NAME: Final = NAME_SIZE - 16
"""Bytes of a name in UTF-8; a longer one is cut."""
ROW: Final = struct.Struct("<QqQQII80s")
"""Body of a row: number, step, time, digest, name, length of the text, text of the value."""
ROW_SIZE: Final = 8 + ROW.size
ROWS: Final = 512
"""Changes of values that are kept. A decision whose value stays has one row, so they reach back far."""
MAX_TEXT: Final = 80
"""Bytes of a value in UTF-8; a longer one is cut, and distinguished from others by its digest."""

NAMES_START: Final = HEAD_SIZE
ROWS_START: Final = NAMES_START + NAMES * NAME_SIZE
DECISIONS_SIZE: Final = ROWS_START + ROWS * ROW_SIZE
