"""The ring's activity section: offsets and packers. docs/reference/ring-format.md says how rows are written.

Times are nanoseconds of the monotonic clock, limits milliseconds; 0: none. Names have references from 1; 0: no room.
"""

from __future__ import annotations

import struct
from typing import Final

READY: Final = 1
"""First word of the section once it is written: its format."""

# The head: indexes of 8-byte words from the start of the section.
WORD_READY: Final = 0
WORD_HEARTBEATS: Final = 1
WORD_HEARTBEAT: Final = 2
WORD_HEARTBEAT_LIMIT: Final = 3
WORD_FIRST_LIMIT: Final = 4
WORD_WATCHED_SINCE: Final = 5
WORD_OUTSIDE_LIMIT: Final = 6
WORD_ENDED: Final = 7
WORD_NAMES: Final = 8
WORD_MISUSES: Final = 9
WORD_UNTRACKED: Final = 10
WORD_LAST_END: Final = 11
WORD_STEP: Final = 12
"""The step: its number as an activity, the body of a row, and that number again."""

ROW: Final = struct.Struct("<QQQQQQQQQQq")
"""Body of a row: number, kind and flags, name, thread (ident, id in the kernel), began, ended, timeout in ms, parent,
root, step."""
ROW_SIZE: Final = 8 + ROW.size
"""A word (ticket, or number) and the body."""
HEAD_SIZE: Final = 256
OPEN_ROWS: Final = 64
"""Sections that can be open at once: a program nests a few, in a few threads."""
ENDED_ROWS: Final = 1024
"""Sections and steps kept after their end; the monitor reads them ten times a second."""
NAMES: Final = 256
"""Different names of sections. A program has a dozen; one that makes names up must not fill the memory."""
NAME_SIZE: Final = 128
MAX_NAME: Final = NAME_SIZE - 8
"""Bytes of a name in UTF-8; a longer one is cut."""

OPEN_START: Final = HEAD_SIZE
ENDED_START: Final = OPEN_START + OPEN_ROWS * ROW_SIZE
NAMES_START: Final = ENDED_START + ENDED_ROWS * ROW_SIZE
ACTIVITY_SIZE: Final = NAMES_START + NAMES * NAME_SIZE

KIND_SECTION: Final = 1
KIND_STEP: Final = 2
KIND_MASK: Final = 0xFF
FLAG_FAILED: Final = 1 << 8
"""The section was left by an exception."""
FLAG_LEFT: Final = 1 << 9
"""The program did not end the section itself: a section around it ended, it was started again, or its thread ended."""
FLAG_AUTOMATIC: Final = 1 << 10
"""The step was counted by the hook on optimizers."""
FLAG_CONTEXT: Final = 1 << 11
"""Of a step, which has no name, timeout and parent: these three words are the ids of the program's own span, of its
trace (the upper half, the lower half) and of the span."""

OTHER: Final = "(other)"
"""Name of a section whose name has no place in the table."""
