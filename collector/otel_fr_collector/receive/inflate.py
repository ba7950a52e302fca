"""Decompression of request bodies, one piece at a time, so that a limit is exceeded by at most one piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

PIECE = 256 << 10
"""Bytes of one piece. It takes about a millisecond, so other tasks can run between two pieces."""
MAX_MEMBERS = 64
"""Members of a body. Clients send one, or one for each batch. An empty member of 20 bytes yields no output, so a limit
on bytes would not stop a body of a million members."""
ENCODINGS = {"gzip": 31, "deflate": 15}
"""zlib's ``wbits`` for each content encoding (RFC 9110, 8.4.1: deflate is the zlib format, as in gRPC)."""
_GZIP = b"\x1f\x8b"


class CorruptError(ValueError):
    """The data cannot be decompressed with its encoding."""


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
            rest = data[at : at + PIECE]  # small, because zlib copies the remaining input in each step
            while rest:
                if self._zlib.eof:  # gzip data may consist of several members (RFC 1952, 2.2)
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
    """Recognise the compression of a gRPC message by its first bytes. None: it is not compressed.

    gRPC does not pass the message's header on if it must not decompress. A protobuf message cannot begin like gzip,
    since wire type 7 does not exist. An OTLP message does not begin like zlib, since it has no field 15.
    """
    if message.startswith(_GZIP):
        return "gzip"
    # RFC 1950, 2.2: method 8 with a window of 32 KiB, and a check sum over both bytes.
    if len(message) > 2 and message[0] == 0x78 and int.from_bytes(message[:2], "big") % 31 == 0:
        return "deflate"
    return None
