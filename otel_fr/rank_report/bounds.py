"""The types of a rank report's values, with their bounds, which the decoder checks."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from otel_fr.identity import MAX_RANKS

MAX_LENGTH: Final = 4 << 20
"""Characters of a report."""
MAX_RANK: Final = 10 * MAX_RANKS
"""More ranks than the collector keeps, so that it can count the other ranks of a larger job and report them as missing.
"""
MAX_NUMBER: Final = 2**63 - 1
"""Largest integer: stores and arrays take at most 64 bits."""
MAX_SECONDS: Final = 1e9
"""31 years, longer than any time that occurs. Infinity and NaN are not accepted."""
MAX_MILLISECONDS: Final = 1e15
"""The largest timeout: programs set very large ones to wait without a limit."""
MAX_GROUPS: Final = 4_096
MAX_GROUP_ID: Final = 256
"""Characters; otel-fr's group ids have 16."""
MAX_CALLS: Final = 64
"""Calls in each list of a report."""
MAX_FINGERPRINT: Final = 129
"""Integers of a fingerprint, which has at most 64 numbers."""
MAX_FETCHED: Final = 32
"""Most sequence numbers of a range whose calls are reported. Of a larger range, only the fingerprint is reported."""
MAX_STACK: Final = 65_536
"""Characters of a stack; a hundred frames are under 20,000."""
MAX_EXCEPTION: Final = 16_384
"""Characters of an exception's type and of its message."""
MAX_THREAD_EXCEPTIONS: Final = 4
"""As many as a ring holds."""
MAX_ACTIVITIES: Final = 16
"""Open sections of a report, the longest open first, and the heartbeat."""
MAX_DECISIONS: Final = 48
"""Runs of equal decisions of a report; each name has its newest ones."""
MAX_DECIDED: Final = 120
"""Characters of a decision's name and of its value."""
MAX_LOOPS: Final = 4
"""Loops of a program that a rank has left."""
MAX_LINES: Final = 4_096
"""Latest collectives whose call sites are in a report."""
MAX_LINES_GROUPS: Final = 2
MAX_PLACES: Final = 64
"""Different call sites of these collectives."""
MAX_PLACE_FRAMES: Final = 4
MAX_PATTERNS: Final = 32
"""Patterns of messages of a report; a stage of a pipeline has up to eight."""
MAX_ROUND_TRIPS: Final = 8
"""Hosts to which a rank has long round trips; a rank of a ring sends to one or two."""
MAX_DOING: Final = 512
"""Characters of what a rank is doing."""
MAX_PATH: Final = 4_096
"""Linux's PATH_MAX."""
MAX_TENSORS: Final = 256
"""Tensors (dtypes, splits) of a call that are compared. Spans name no more: both are cut to the same length."""
MAX_DIMENSIONS: Final = 64
"""Dimensions of a tensor: the most over which PyTorch reduces (ATen/WrapDimUtilsMulti.h, dim_bitset_size)."""
MAX_DTYPE: Final = 64
"""Characters of a dtype's name; PyTorch's longest has 17."""
MAX_NAME: Final = 1_024
"""Characters of a name: a group's, a call site's, an error's."""

DEFAULT_STALL_SECONDS: Final = 5.0
"""Used for a report without this key. It stays the same when the default in `otel_fr.config` changes."""
DEFAULT_INTERVAL: Final = 1.0
"""Used for a report without this key."""
DEFAULT_PEER_TIMEOUT: Final = 5.0
"""Used for a report without this key."""

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Integer = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS, title="seconds")]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MILLISECONDS, title="milliseconds")]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
GroupId = Annotated[str, Meta(max_length=MAX_GROUP_ID)]
Ranks = Annotated[str, Meta(max_length=MAX_LENGTH)]
"""Ranks as `otel_fr.identity.encode_ranks` writes them. They stay text, so that the collector decodes each different
text once for all ranks."""
Stack = Annotated[str, Meta(max_length=MAX_STACK)]
Names = Annotated[tuple[Annotated[str, Meta(max_length=MAX_DTYPE)], ...], Meta(max_length=MAX_TENSORS)]
Splits = Annotated[tuple[Integer, ...], Meta(max_length=MAX_TENSORS)]
Sizes = Annotated[
    tuple[Annotated[tuple[Integer, ...], Meta(max_length=MAX_DIMENSIONS)], ...], Meta(max_length=MAX_TENSORS)
]
Fingerprint = Annotated[tuple[Count, ...], Meta(max_length=MAX_FINGERPRINT)]
