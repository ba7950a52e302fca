"""Ids of runs, groups, traces and spans, which every rank computes for itself.

All ranks' spans of one collective have the same trace id because each rank hashes the same values:
the run, the process group, and the call's sequence number in that group. blake2b is in the standard
library and takes less than a microsecond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal, get_args

MAX_RANKS = 100_000
"""Most ranks of a job and members of a group that otel-fr accepts. Every rank number is smaller."""

Stream = Literal["collective", "p2p", "monitored_barrier", "group"]
"""A series of sequence numbers of a group. PyTorch does not count monitored_barrier as a collective. ``"group"``: calls
that create process groups, numbered in the default group, and calls that destroy the group."""
STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)
"""In the order of the ring's kinds of calls."""


def _digest(size: int, *parts: object) -> bytes:
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()


BLOCK = 512
"""Ranks that `encode_ranks` compares at once."""


def encode_ranks(ranks: Iterable[int]) -> str:
    """Ranks as text, with ranges and steps: ``[0, 1, 2, 3, 8, 10, 12]`` -> ``"0-3,8-12:2"``. Order is kept."""
    items = list(ranks)
    out: list[str] = []
    start = 0
    while start < len(items):
        end = start
        step = items[start + 1] - items[start] if start + 1 < len(items) else 0
        while step > 0 and _is_even(items, end, step):
            end += BLOCK - 1
        while step > 0 and end + 1 < len(items) and items[end + 1] - items[end] == step:
            end += 1
        if end - start < 2:
            end = start
            out.append(str(items[start]))
        else:
            out.append(f"{items[start]}-{items[end]}" + (f":{step}" if step > 1 else ""))
        start = end + 1
    return ",".join(out)


def _is_even(items: list[int], start: int, step: int) -> bool:
    """True if the next `BLOCK` items rise by ``step``. With 100,000 ranks, this is faster than one by one."""
    first, end = items[start], start + BLOCK
    last = first + step * (BLOCK - 1)
    return end <= len(items) and items[end - 1] == last and items[start:end] == [*range(first, last + 1, step)]


def decode_ranks(text: str, limit: int = MAX_RANKS) -> list[int]:
    """The inverse of `encode_ranks`.

    Raises:
        ValueError: the text does not have that form, or names more than ``limit`` ranks.
    """
    ranks: list[int] = []
    for part in text.split(",") if text else []:
        span, _, step_text = part.partition(":")
        first_text, dash, last_text = span.partition("-")
        try:
            first = int(first_text)
            last = int(last_text) if dash else first
            step = int(step_text) if step_text else 1
        except ValueError as error:
            raise ValueError(f"rank list {text[:80]!r} does not have the form '0-3,8-12:2'") from error
        if step < 1 or (last - first) // step >= limit - len(ranks):
            raise ValueError(f"rank list {text[:80]!r} names too many ranks or has a step below 1")
        ranks.extend(range(first, last + 1, step))
    return ranks


def run_id(job_id: str, attempt: int, nonce: str) -> str:
    """Id of one run of a job: 16 hex digits. The ranks share the nonce over the job's store."""
    return _digest(8, "run", job_id, attempt, nonce).hex()


def group_id(name: str, ranks: Iterable[int], generation: int = 0) -> str:
    """Id of a process group: 16 hex digits. c10d reuses names, for other members and after a new init."""
    return _digest(8, "group", name, encode_ranks(ranks), generation).hex()


def incident_id(run: str, key: str) -> str:
    """Id of the incident of a finding in one run: 16 hex digits, the same live and from files."""
    return _digest(8, "incident", run, key).hex()


def trace_id(run: str, group: str, stream: str, sequence_id: int) -> bytes:
    """Id (16 bytes) of the trace that all ranks' spans of one collective share."""
    return _digest(16, "trace", run, group, stream, sequence_id)


def p2p_trace_id(run: str, group: str, source: int, destination: int, tag: int, index: int) -> bytes:
    """Id (16 bytes) of the trace that a send and its receive share: the ``index``-th with that pair and tag."""
    return _digest(16, "p2p", run, group, source, destination, tag, index)


def span_id(trace: bytes, rank: int, record_id: int) -> bytes:
    """Id (8 bytes) of the span of one rank's call in a trace."""
    return _digest(8, "span", trace.hex(), rank, record_id)


def activity_trace_id(run: str, rank: int, root: int) -> bytes:
    """Id (16 bytes) of the trace of a rank's step or outermost section. ``root``: its number in the process."""
    return _digest(16, "activity", run, rank, root)


def activity_span_id(trace: bytes, number: int) -> bytes:
    """Id (8 bytes) of the span of a step or section in its trace."""
    return _digest(8, "activity", trace.hex(), number)


def root_span_id(trace: bytes) -> bytes:
    """Id (8 bytes) of the root span that the collector sends if there is an incident in a trace."""
    return _digest(8, "root", trace.hex())


def incident_span_id(trace: bytes, *of: object) -> bytes:
    """Id (8 bytes) of another span about an incident in a trace. ``of``: who reports it, and about what."""
    return _digest(8, "incident", trace.hex(), *of)
