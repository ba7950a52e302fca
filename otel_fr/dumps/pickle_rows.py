"""Rows of pickle instructions met before, so that further rows of the same form are checked with one regex match.

A row is the instructions that build one entry. The entries of a recorder's pickles consist of the same few rows; only
the arguments differ. A row that recurs becomes a pattern of exactly these instructions, each checked by the same rule
that `safe_parse` applies to a single instruction.
"""

from __future__ import annotations

import re
from itertools import pairwise

_INTEGER = rb"(?:K.|M..|J.{4})"
_EXACT = {b"h": rb"h.", b"j": rb"j.{4}", b"q": rb"q.", b"r": rb"r..[\x00-\x0f]\x00"}
_STEP = re.compile(
    rb"(?s:"
    rb"(?P<integer>K.|M..|J.{4})"
    rb"|(?P<memo>h.|j.{4}|q.|r..[\x00-\x0f]\x00)"
    rb"|(?P<plain>[(N}\])lduase\x86\x88\x89\x94])"
    rb"|(?P<text>[X\x8c](?:(?<=X)(?P<long>.)\x00\x00\x00|(?<=\x8c)(?P<short>.)))"
    rb"|(?P<wide>\x8a\x08.{8}|\x8a\x05.{5}|[G\x95].{8})"
    rb")"
)
"""One instruction. `safe_parse` allows all of these with these arguments."""

_PUSH = re.compile(rb"[KMJhjX\x8cG\x8aN\x88\x89]")
_TUPLE2 = re.escape(b"\x86")
_GET, _PUT, _KEY = (b"h", b"j"), (b"q", b"r", b"\x94"), (b"h", b"j", b"X", b"\x8c")

_MAX_STEPS = 600
_HOT = 4
"""Occurrences of a row after which it becomes a pattern."""
_TOGETHER = 32
_MAX_PATTERNS = 32
_MAX_LOOKS = 2_000
"""Rows examined per process: in files without recurring rows, examining more only costs time."""
ENOUGH = 256 * 1024
"""Size of a pickle in bytes from which looking for rows saves time."""


class KnownRows:
    """The rows that this process has met. A row ends with SETITEMS.

    Attributes:
        get, put: some row builds tuples from memo gets, or puts a tuple into the memo.
    """

    def __init__(self, enough: int = ENOUGH) -> None:
        """``enough``: size of a pickle in bytes from which rows are looked for."""
        self.get = self.put = False
        self._enough = enough
        self._seen: dict[bytes, int] = {}
        self._hot: list[bytes] = []
        self._looks = _MAX_LOOKS
        self._compiled = True
        self._pattern: re.Pattern[bytes] | None = None

    def skip(self, data: bytes, position: int) -> int:
        """The position after the known rows that begin at ``position``; ``position`` if none does."""
        if self._pattern is None:
            return position
        found = self._pattern.match(data, position)
        return found.end() if found is not None else position

    def look(self, data: bytes, position: int) -> int:
        """Check and learn the row at ``position``. Returns its end; ``position`` if it was not checked."""
        if self._looks <= 0 or len(data) < self._enough or (len(self._hot) >= _MAX_PATTERNS and self._compiled):
            return position
        self._looks -= 1
        parts: list[bytes] = []
        at = position
        for _ in range(_MAX_STEPS):
            step = _STEP.match(data, at)
            if step is None:
                return position
            part, at = _part(data, step)
            if at > len(data):
                return position
            parts.append(part)
            if part == b"u":
                break
        else:
            return position
        if not self._flat(parts):
            return position
        row = b"".join(parts)
        times = self._seen[row] = self._seen.get(row, 0) + 1
        if times == _HOT:
            self._hot.append(row)
            self._compiled = False
        # Compiling the pattern takes as long as examining many rows, so it is not done for each new one.
        if not self._compiled and self._looks % _TOGETHER == 0:
            self._compiled = True
            self._pattern = re.compile(b"(?s:(?:" + b"|".join(self._hot) + b"){0,4000})")
        return at

    def _flat(self, parts: list[bytes]) -> bool:
        """True if each tuple has a form that `pickle_tuples.TupleCheck.proven` covers: of two texts or gets."""
        for before, part in pairwise(parts):
            if part[:1] in _PUT and before[:1] in _GET:
                return False  # the value, possibly a tuple, is stored under a second memo number
        for index, part in enumerate(parts):
            if part != _TUPLE2:
                continue
            items: list[bytes] = []
            at = index
            while len(items) < 2:
                at -= 1
                at -= at >= 0 and parts[at][:1] in _PUT
                if at < 0 or _PUSH.match(parts[at]) is None:
                    return False
                items.append(parts[at][:1])
            last, first = (item in _GET for item in items)
            if first and not last:
                return False
            put = parts[index + 1][:1] in _PUT
            if parts[index + 1][:1] == b"\x94" or parts[index + 1 + put][:1] not in _KEY:
                return False
            self.get |= first or last
            self.put |= put
        return True


def _part(data: bytes, step: re.Match[bytes]) -> tuple[bytes, int]:
    """The pattern of an instruction, and the position after the instruction."""
    end = step.end()
    kind = step.lastgroup
    if kind == "integer":
        return _INTEGER, end
    if kind == "memo":
        return _EXACT[step[0][:1]], end
    if kind == "plain":
        return re.escape(step[0]), end
    if kind == "wide":
        head = 1 if step[0][:1] in b"G\x95" else 2
        return re.escape(step[0][:head]) + b".{%d}" % (len(step[0]) - head), end
    length = (step["long"] or step["short"])[0]
    return re.escape(step[0]) + b".{%d}" % length, end + length
