"""The ring's section of decisions: offsets and packers. docs/reference/ring-format.md says how rows are written.

A decision has a row if its value differs from the previous decision of the same name. The value holds until that name's
next row.
"""

from __future__ import annotations

import struct
from typing import Final

READY: Final = 1
"""First word of an initialised section. It is the version of the format."""

# The head: indexes of 8-byte words from the start of the section.
WORD_READY: Final = 0
WORD_NEWEST: Final = 1
WORD_NAMES: Final = 2
WORD_UNTRACKED: Final = 3
WORD_FAILURES: Final = 4
HEAD_SIZE: Final = 64

NAMES: Final = 64
"""Most names of decisions. A program has about a dozen, but a program that generates names must not fill memory."""
NAME_SIZE: Final = 128
MAX_NAME: Final = NAME_SIZE - 16
"""Most bytes of a name in UTF-8. A longer name is cut."""
ROW: Final = struct.Struct("<QqQQII80s")
"""Body of a row: number, step, time, digest, name, length of the text, text of the value."""
ROW_SIZE: Final = 8 + ROW.size
ROWS: Final = 512
"""How many changes of values are kept. They reach back far, because equal decisions share one row."""
MAX_TEXT: Final = 80
"""Most bytes of a value in UTF-8. A longer value is cut. Its digest distinguishes it from other values."""

NAMES_START: Final = HEAD_SIZE
ROWS_START: Final = NAMES_START + NAMES * NAME_SIZE
DECISIONS_SIZE: Final = ROWS_START + ROWS * ROW_SIZE
