"""The encoding of the definitions: integers, texts and lists as bytes.

Integers are LEB128 varints: seven bits in each byte, lowest first; the high bit means that more follow. Signed integers
are zigzag encoded. A text is its length in bytes, then UTF-8. A list is its length, then its items.
"""

from __future__ import annotations

from otel_fr.ring.layout import MAX_DEFINITION

Sizes = tuple[tuple[int, ...], ...]


class DefinitionError(ValueError):
    """The bytes are not a definition of that kind, or a value does not fit a definition."""


class Encoder:
    """Appends values to ``data``."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def uint(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise DefinitionError(f"{value} does not fit 64 bits without a sign")
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def sint(self, value: int) -> None:
        self.uint(value << 1 if value >= 0 else (-value << 1) - 1)

    def text(self, value: str) -> None:
        # A path that is not UTF-8 has lone surrogates in Python. They are escaped, because no exporter accepts them.
        raw = value.encode("utf-8", "backslashreplace")
        self.uint(len(raw))
        self.data += raw

    def uints(self, values: tuple[int, ...]) -> None:
        self.uint(len(values))
        for value in values:
            self.uint(value)

    def sizes(self, values: Sizes) -> None:
        self.uint(len(values))
        for value in values:
            self.uints(value)

    def runs(self, values: tuple[str, ...]) -> None:
        """Append a list of texts as runs of (count, text), because most texts are equal."""
        runs: list[tuple[int, str]] = []
        for value in values:
            if runs and runs[-1][1] == value:
                runs[-1] = (runs[-1][0] + 1, value)
            else:
                runs.append((1, value))
        self.uint(len(runs))
        for count, value in runs:
            self.uint(count)
            self.text(value)


class Decoder:
    """Reads values from bytes. Every method raises DefinitionError at the end of the data."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def uint(self) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self.data) or shift > 63:
                raise DefinitionError("an integer has no end")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def sint(self) -> int:
        value = self.uint()
        return -(value + 1 >> 1) if value & 1 else value >> 1

    def count(self) -> int:
        """Read the length of a list whose items take at least a byte each."""
        value = self.uint()
        if value > len(self.data) - self.position:
            raise DefinitionError(f"a list of {value} is longer than its definition")
        return value

    def text(self) -> str:
        size = self.count()
        raw = self.data[self.position : self.position + size]
        self.position += size
        return raw.decode("utf-8", "replace")

    def uints(self) -> tuple[int, ...]:
        return tuple([self.uint() for _ in range(self.count())])

    def sizes(self) -> Sizes:
        return tuple([self.uints() for _ in range(self.count())])

    def runs(self) -> tuple[str, ...]:
        values: list[str] = []
        for _ in range(self.count()):
            count = self.uint()
            if count > MAX_DEFINITION - len(values):
                raise DefinitionError("too many dtypes")
            values += [self.text()] * count
        return tuple(values)

    def end(self) -> None:
        if self.position != len(self.data):
            raise DefinitionError("bytes are left over")
