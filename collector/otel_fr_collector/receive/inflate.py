"""Decompression of request bodies, one piece at a time, so that a limit is exceeded by one piece at most."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

PIECE = 256 << 10
"""Bytes of one piece, about a millisecond: small enough that other tasks run between two pieces."""
MAX_MEMBERS = 64
"""Members of a body; clients send one, or one of each batch. An empty one of 20 bytes gives none, so no limit on bytes
ends a body of a million."""
ENCODINGS = {"gzip": 31, "deflate": 15}
"""zlib's ``wbits`` of each content encoding (RFC 9110, 8.4.1: deflate is the zlib format; gRPC means the same)."""
_GZIP = b"\x1f\x8b"


class CorruptError(ValueError):
    """The data cannot be decompressed as its encoding says."""


class Inflater:
    """Decompresses the data that it is fed.

    Args:
        encoding: one of `ENCODINGS`.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib = zlib.decompressobj(ENCODINGS[encoding])
        self._members = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next data, in pieces of at most `PIECE` bytes.

        Raises:
            CorruptError: the data cannot be decompressed, or has more than `MAX_MEMBERS` members.
        """
        for at in range(0, len(data), PIECE):
            rest = data[at : at + PIECE]  # zlib copies what is left of it, again and again
            while rest:
                if self._zlib.eof:  # gzip may be several members one after the other (RFC 1952, 2.2)
                    self._members += 1
                    if self._members > MAX_MEMBERS:
                        raise CorruptError(f"the {self._encoding} data has more than {MAX_MEMBERS} members")
                    self._zlib = zlib.decompressobj(ENCODINGS[self._encoding])
                try:
                    piece = self._zlib.decompress(rest, PIECE)
                except zlib.error as error:
                    raise CorruptError(f"the data is not {self._encoding}") from error
                rest = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
                yield piece

    def finish(self) -> None:
        """Raises CorruptError if data is missing at the end."""
        if not self._zlib.eof:
            raise CorruptError(f"the {self._encoding} data ends too early")


def encoding_of(message: bytes) -> str | None:
    """How a gRPC message is compressed, by its first bytes; None: not compressed.

    gRPC hands over the message without its header when it is asked not to decompress. A protobuf message cannot begin
    like gzip (wire type 7 does not exist); one of OTLP's does not begin like zlib (field 15 does not exist).
    """
    if message.startswith(_GZIP):
        return "gzip"
    # RFC 1950, 2.2: method 8 with a window of 32 KiB, and a check sum over both bytes.
    if len(message) > 2 and message[0] == 0x78 and int.from_bytes(message[:2], "big") % 31 == 0:
        return "deflate"
    return None
