"""The entries of one file as columns: a sequence of `Entry` that is cheap to build, store and send to a process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from otel_fr.dumps.entry import Entry
from otel_fr.identity import STREAMS
from otel_fr.match.model import CallState, Signature

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

STATES = tuple(CallState)
COLLECTIVE, P2P = STREAMS.index("collective"), STREAMS.index("p2p")
COMPLETED, IN_FLIGHT, UNKNOWN = map(STATES.index, (CallState.COMPLETED, CallState.IN_FLIGHT, CallState.UNKNOWN))

NONE = -(1 << 63)
"""Stands for None in a column of integers. Columns of floats use NaN."""

_CHUNK = 4096
"""Entries that iteration builds at a time."""

_SHOWN = 3
"""Entries that the text of a sequence shows."""

T = TypeVar("T")


class Label(NamedTuple):
    """Fields that many entries of a file have in common, apart from group and signature."""

    timeout: float | None
    error: str | None
    backend: str
    thread: str


class CallSite(NamedTuple):
    """A call site: the line of the user's code, and all recorded frames, innermost first."""

    site: str
    frames: tuple[str, ...]


@dataclass(slots=True, eq=False, repr=False)
class Entries(Sequence[Entry]):
    """The entries of one file, oldest first. Immutable: `take` and `replace` return new ones.

    Every column has one value per entry. A column is None if no entry has a value.

    Attributes:
        groups, signatures, labels, call_sites: tables. The columns ``group``, ``signature``, ``label`` and
            ``call_site`` are indices into them. Two entries' signatures are equal only if their indices are.
        stream, state: indices into `STREAMS` and `STATES`.
        sequence_id, record: as in `Entry`.
        pair_index, batch: as in `Entry`. `NONE` if an entry has none.
        age, duration, gap: seconds. NaN if not known.
        created, started, ended: ns. `NONE` if not known.
    """

    groups: Sequence[str]
    signatures: Sequence[Signature]
    labels: Sequence[Label]
    call_sites: Sequence[CallSite]
    _: KW_ONLY
    group: Indices
    stream: Codes
    sequence_id: Integers
    record: Integers
    signature: Indices
    state: Codes
    label: Indices
    call_site: Indices
    pair_index: Integers | None = None
    batch: Integers | None = None
    age: Floats | None = None
    duration: Floats | None = None
    gap: Floats | None = None
    created: Integers | None = None
    started: Integers | None = None
    ended: Integers | None = None

    def __post_init__(self) -> None:
        self.pair_index, self.batch = _values(self.pair_index), _values(self.batch)
        self.created, self.started, self.ended = _values(self.created), _values(self.started), _values(self.ended)
        self.age, self.duration, self.gap = _finite(self.age), _finite(self.duration), _finite(self.gap)

    def __len__(self) -> int:
        return len(self.record)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> Entries: ...

    def __getitem__(self, index: int | slice) -> Entry | Entries:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        at = range(len(self))[index]
        return next(self._made(at, at + 1))

    def __iter__(self) -> Iterator[Entry]:
        for start in range(0, len(self), _CHUNK):
            yield from self._made(start, start + _CHUNK)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Entries, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        shown = self.at(np.arange(min(len(self), _SHOWN)))
        more = f", and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return f"Entries({shown!r}{more})"

    def take(self, chosen: npt.NDArray[Any]) -> Entries:
        """The entries at these positions, or those for which this mask is true."""
        columns = ((name, getattr(self, name)) for name in _COLUMNS)
        return self.replace(**{name: column[chosen] for name, column in columns if column is not None})

    def replace(self, **changes: Any) -> Entries:
        """These entries with other columns or tables."""
        return dataclasses.replace(self, **changes)

    def at(self, positions: npt.NDArray[Any]) -> list[Entry]:
        """The entries at these positions, as objects."""
        return list(self.take(positions))

    def _made(self, start: int, stop: int) -> Iterator[Entry]:
        span = slice(start, stop)
        count = len(self.record[span])
        groups, signatures, labels, call_sites = self.groups, self.signatures, self.labels, self.call_sites
        known = (self.group, self.stream, self.sequence_id, self.record, self.signature, self.state, self.label)
        rows = zip(
            *(column[span].tolist() for column in (*known, self.call_site)),
            *(_integers(column, span, count) for column in (self.pair_index, self.batch)),
            *(_floats(column, span, count) for column in (self.age, self.duration, self.gap)),
            *(_integers(column, span, count) for column in (self.created, self.started, self.ended)),
            strict=True,
        )
        for group, stream, seq, record, sig, state, lab, at, pair, batch, age, took, gap, created, began, ended in rows:
            label, call_site = labels[lab], call_sites[at]
            yield Entry(
                groups[group], STREAMS[stream], seq, record, signatures[sig], STATES[state], pair, age, took, gap,
                label.timeout, label.error, call_site.site, batch, call_site.frames, created, began, ended,
                label.backend, label.thread,
            )  # fmt: skip


_COLUMNS = tuple(field.name for field in dataclasses.fields(Entries))[4:]


class Table(dict[T, int]):
    """Value -> its index. Looking up a new value gives it the next index."""

    def __missing__(self, value: T) -> int:
        index = self[value] = len(self)
        return index


def integers(values: Sequence[int | None]) -> Integers:
    """A column of integers. Raises OverflowError if a value needs more than 64 bits."""
    return np.array([NONE if value is None else value for value in values], np.int64)


def floats(values: Sequence[float | None]) -> Floats:
    """A column of floats. Raises OverflowError if a value is an integer that is too large."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def indices(values: Sequence[int]) -> Indices:
    """A column of indices into a table."""
    return np.array(values, np.int32)


def codes(values: Sequence[int]) -> Codes:
    """A column of indices into `STREAMS` or `STATES`."""
    return np.array(values, np.int8)


def _values(column: Integers | None) -> Integers | None:
    return None if column is None or bool((column == NONE).all()) else column


def _finite(column: Floats | None) -> Floats | None:
    return None if column is None or bool(np.isnan(column).all()) else column


def _integers(column: Integers | None, span: slice, count: int) -> list[int | None]:
    if column is None:
        return [None] * count
    return [None if value == NONE else value for value in column[span].tolist()]


def _floats(column: Floats | None, span: slice, count: int) -> list[float | None]:
    if column is None:
        return [None] * count
    return [None if value != value else value for value in column[span].tolist()]
