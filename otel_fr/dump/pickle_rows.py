"""Skeletons of the entries seen so far, so that the next like them are checked at one blow.

The entries of a recorder's pickles are all made of the same few rows of instructions; only the arguments differ. Such
a row becomes a pattern that has exactly these instructions, each checked as `safe_parse` checks it alone.
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
"""One instruction; these, with these arguments, are all ones that `safe_parse` allows."""

_PUSH = re.compile(rb"[KMJhjX\x8cG\x8aN\x88\x89]")
_TUPLE2 = re.escape(b"\x86")
_GET, _PUT, _KEY = (b"h", b"j"), (b"q", b"r", b"\x94"), (b"h", b"j", b"X", b"\x8c")

_MAX_STEPS = 600
_HOT = 4
"""Times that a row is seen before it becomes a pattern."""
_TOGETHER = 32
_MAX_PATTERNS = 32
_MAX_LOOKS = 2_000
"""Rows looked at, from the start of the process: where there are no few rows, looking on only takes time."""
ENOUGH = 256 * 1024
"""Bytes of a pickle from which on looking for rows pays."""


class Skeletons:
    """The rows that this process has met. A row ends with SETITEMS.

    Attributes:
        get, put: tuples of some row are made of gets, or are put into the memo.
    """

    def __init__(self, enough: int = ENOUGH) -> None:
        """Of none yet. ``enough``: bytes of a pickle from which on looking for rows pays."""
        self.get = self.put = False
        self._enough = enough
        self._seen: dict[bytes, int] = {}
        self._hot: list[bytes] = []
        self._looks = _MAX_LOOKS
        self._compiled = True
        self._pattern: re.Pattern[bytes] | None = None

    def skip(self, data: bytes, position: int) -> int:
        """Where the known rows end that stand at ``position``; ``position`` if there are none."""
        if self._pattern is None:
            return position
        found = self._pattern.match(data, position)
        return found.end() if found is not None else position

    def look(self, data: bytes, position: int) -> int:
        """Learn the row at ``position``, if it pays, and return where it ends; ``position`` if nothing was checked."""
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
        # Making a pattern takes as long as looking at many rows: not anew for each.
        if not self._compiled and self._looks % _TOGETHER == 0:
            self._compiled = True
            self._pattern = re.compile(b"(?s:(?:" + b"|".join(self._hot) + b"){0,4000})")
        return at

    def _flat(self, parts: list[bytes]) -> bool:
        """True if each tuple is one that `tuples.Tuples.proven` knows how to judge: of two texts or gets."""
        for before, part in pairwise(parts):
            if part[:1] in _PUT and before[:1] in _GET:
                return False  # what is got, a tuple it may be, gets another number
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
    """The pattern of an instruction, and where the instruction ends."""
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
