"""The ring's activity section: offsets and packers. docs/reference/ring-format.md says how rows are written.

Times are in nanoseconds of the monotonic clock, limits in milliseconds; 0: none. References of names begin with 1; 0
means that the table had no room for the name.
"""

from __future__ import annotations

import struct
from typing import Final

READY: Final = 1
"""First word of an initialised section. It is the version of the format."""

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
"""First word of the current step: its activity number, the body of a row, and the activity number again."""

ROW: Final = struct.Struct("<QQQQQQQQQQq")
"""Body of a row: number, kind and flags, name, thread (ident, id in the kernel), began, ended, timeout in ms, parent,
root, step."""
ROW_SIZE: Final = 8 + ROW.size
"""A row is a word (ticket or number) and the body."""
HEAD_SIZE: Final = 256
OPEN_ROWS: Final = 64
"""How many open sections have a row. A program nests a few sections, in a few threads."""
ENDED_ROWS: Final = 1024
"""How many sections and steps are kept after their end. The monitor reads them ten times a second."""
NAMES: Final = 256
"""Most names of sections. A program has about a dozen, but a program that generates names must not fill memory."""
NAME_SIZE: Final = 128
MAX_NAME: Final = NAME_SIZE - 8
"""Most bytes of a name in UTF-8. A longer name is cut."""

OPEN_START: Final = HEAD_SIZE
ENDED_START: Final = OPEN_START + OPEN_ROWS * ROW_SIZE
NAMES_START: Final = ENDED_START + ENDED_ROWS * ROW_SIZE
ACTIVITY_SIZE: Final = NAMES_START + NAMES * NAME_SIZE

KIND_SECTION: Final = 1
KIND_STEP: Final = 2
KIND_MASK: Final = 0xFF
FLAG_FAILED: Final = 1 << 8
"""An exception ended the section."""
FLAG_LEFT: Final = 1 << 9
"""The program did not end the section itself: a section around it ended, it was started again, or its thread ended."""
FLAG_AUTOMATIC: Final = 1 << 10
"""The hook on optimizers counted the step."""
FLAG_CONTEXT: Final = 1 << 11
"""The step's row contains the program's own span. A step has no name, timeout and parent, so these three words contain
the upper half and the lower half of the trace id, and the span id."""

OTHER: Final = "(other)"
"""Shown for a section whose name had no room in the table."""
