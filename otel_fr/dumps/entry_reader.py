"""Reads the entries of a flight-recorder file, of any recorder, as `Entries`.

The fields that many calls have in common (group, name, sizes, dtypes, state, ...) are read once per file and then
recognised by their bytes. The fields of a single call (numbers, times, call site) are read column by column. If a file
contains anything unusual, each entry is checked separately, and left out if it is not valid. Both ways give the same
result.
"""

from __future__ import annotations

import contextlib
import marshal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from otel_fr.dumps import fields
from otel_fr.dumps.columns import (
    NONE,
    STATES,
    CallSite,
    Entries,
    Floats,
    Integers,
    Label,
    Table,
    codes,
    floats,
    indices,
    integers,
)
from otel_fr.dumps.safe_parse import UnreadableDump
from otel_fr.identity import STREAMS, Stream
from otel_fr.match.model import CallState, Signature, Sizes

MAX_NUMBERS = 100_000_000
"""Most numbers in the tensor sizes of one file. A small pickle can refer to one long list many times."""

_MANY = MAX_NUMBERS // 16
"""With more numbers in the sizes, or more items in other lists, each entry is checked separately."""

_MAX_LAYOUTS = 64
_MAX_KEYS = 64
_MAX_FRAME_TEXT = 32 << 20
"""Most characters of all distinct frames of one file in total."""

_REFUSED = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


class Kind(NamedTuple):
    """The fields that calls of one kind have in common. ``end``: see `operation_names.BATCH_ENDS`."""

    group: str
    stream: Stream
    signature: Signature
    state: CallState
    label: Label
    end: int = 0


class EntryReader(ABC):
    """Reads the entries of one file.

    Attributes:
        notes: irregularities found, as sentences.
        unusable: number of entries that lack required fields. They are left out.
        ends: for each entry that was read, whether it ends a batch (`operation_names.BATCH_ENDS`).
    """

    _SIZES: tuple[str, ...]
    _LISTS: tuple[str, ...]
    _SCALARS: tuple[str, ...]
    """Fields that determine a `Kind`, by the type of their values."""
    _OWN: tuple[str, ...]
    """Fields that `_columns` reads."""
    _WHOLE_FRAMES: bool
    """Whether the recorder's first frame is the call site, because it leaves out frames of libraries further in."""

    def __init__(self) -> None:
        """Make a reader for one file."""
        self.notes: list[str] = []
        self.unusable = 0
        self.ends = codes([])
        self._signatures: dict[tuple[object, ...], Signature] = {}
        self._numbers = 0
        self._frames: dict[int, str] = {}
        self._frame_texts: dict[str, str] = {}
        self._frame_room = _MAX_FRAME_TEXT
        self._call_sites: Table[CallSite] = Table()
        self._call_site_of: dict[int | tuple[int, ...], int] = {}

    def read(self, raw: list[Any]) -> Entries:
        """All usable entries, in the order of the file (oldest first)."""
        found = self.read_usual(raw)
        return self.read_any(raw) if found is None else found

    def read_any(self, raw: list[Any]) -> Entries:
        """Like `read`, for any file."""
        kinds: Table[Kind] = Table()
        which: list[int] = []
        usable: list[Mapping[str, Any]] = []
        for item in raw:
            try:
                kind = self._kind(item)
                self._check(item, kind)
            except _REFUSED:
                self.unusable += 1
                continue
            which.append(kinds[kind])
            usable.append(item)
        if self.unusable:
            self.notes.append(f"{self.unusable} of {len(raw)} entries lack required fields and were left out")
        columns: dict[str, Sequence[Any]] = {
            name: [item.get(name) for item in usable] for name in ("frames", *self._OWN)
        }
        return self._entries(list(kinds), indices(which), RawColumns(columns, len(usable), even=True))

    def read_usual(self, raw: list[Any]) -> Entries | None:
        """Like `read`, but fast. None: not every entry has the usual form."""
        table = _transposed(raw)
        if table is None or not self._bounded(table):
            return None
        try:
            return self._entries(*self._kinds(raw, table), table)
        except _REFUSED:
            return None

    def _bounded(self, table: RawColumns) -> bool:
        """Return whether the fields that determine a kind are no larger than a recorder writes them."""
        return (
            all(fields.bounded_scalars(table.present(name)) for name in self._SCALARS)
            and all(fields.bounded_sizes(table.present(name), _MANY) for name in self._SIZES)
            and all(fields.bounded_lists(table.present(name), _MANY) for name in self._LISTS)
            and _bounded_pairs(table.present("process_group"))
        )

    def _kinds(self, raw: list[dict[str, Any]], table: RawColumns) -> tuple[list[Kind], Any]:
        """The distinct kinds, and for each entry the index of its kind."""
        names = ("process_group", *self._SCALARS, *self._SIZES, *self._LISTS)
        columns = [table.columns[name] for name in names if name in table.columns]
        if not columns:
            raise KeyError
        # Version 0 of marshal: equal values give equal bytes, whether they are one object or several.
        keys = list(map(marshal.dumps, zip(*columns, strict=True), repeat(0)))
        first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        kinds: Table[Kind] = Table()
        kind_of = {key: kinds[self._kind(raw[at])] for key, at in sorted(first.items(), key=itemgetter(1))}
        return list(kinds), indices([kind_of[key] for key in keys])

    def _call_site_column(self, table: RawColumns) -> Any:
        column = table.optional("frames")
        ids = list(map(id, column))
        call_sites = {key: self._call_site(frames) for key, frames in dict(zip(ids, column, strict=True)).items()}
        return indices([call_sites[key] for key in ids])

    # What differs between recorders.

    @abstractmethod
    def _kind(self, item: Mapping[str, Any]) -> Kind:
        """The kind of one entry. Raises KeyError, ValueError or TypeError if it is not an entry."""

    @abstractmethod
    def _check(self, item: Mapping[str, Any], kind: Kind) -> None:
        """Raise like `_kind` if the entry lacks a field that `_columns` needs."""

    @abstractmethod
    def _columns(self, table: RawColumns, kinds: list[Kind], which: Any) -> dict[str, Any]:
        """The columns of `Entries` that are not part of a `Kind`, by name.

        Raises like `_kind` if an entry lacks a field that all entries of usual files have.
        """

    # Common to `read_any` and `read_usual`.

    def _entries(self, kinds: list[Kind], which: Any, table: RawColumns) -> Entries:
        columns, call_sites = self._columns(table, kinds, which), self._call_site_column(table)
        groups: Table[str] = Table()
        signatures: Table[Signature] = Table()
        labels: Table[Label] = Table()
        group = indices([groups[kind.group] for kind in kinds])
        stream = codes([STREAMS.index(kind.stream) for kind in kinds])
        signature = indices([signatures[kind.signature] for kind in kinds])
        state = codes([STATES.index(kind.state) for kind in kinds])
        label = indices([labels[kind.label] for kind in kinds])
        self.ends = codes([kind.end for kind in kinds])[which]
        return Entries(
            list(groups),
            list(signatures),
            list(labels),
            list(self._call_sites),
            group=group[which],
            stream=stream[which],
            signature=signature[which],
            state=state[which],
            label=label[which],
            call_site=call_sites,
            **columns,
        )

    def _signature(self, *values: Any) -> Signature:
        """The signature with these fields. Sizes and dtypes are checked only when they are first seen."""
        known = self._signatures.get(values)
        if known is None:
            operation, ins, outs, in_types, out_types, *rest = values
            in_types, out_types = fields.checked_dtypes(in_types), fields.checked_dtypes(out_types)
            ins, in_types = fields.defined(fields.checked_sizes(ins, in_types), in_types)
            outs, out_types = fields.defined(fields.checked_sizes(outs, out_types), out_types)
            known = Signature(operation, ins, outs, in_types, out_types, *rest)
            self._signatures[values] = known
        return known

    def _sizes(self, value: object) -> Sizes:
        """The value as shapes, whose numbers are checked later. Empty if it is not a list of lists."""
        if type(value) is not list:
            return ()
        try:
            widest = max(map(len, value), default=0)
            self._numbers += widest * len(value)
            if widest > fields.MAX_DIMENSIONS:
                return ()
            if self._numbers > MAX_NUMBERS:
                raise UnreadableDump(f"its tensor sizes are more than {MAX_NUMBERS} numbers; record fewer entries")
            return tuple(map(tuple, value))
        except TypeError:
            return ()

    def _call_site(self, frames: object) -> int:
        """Index of the call site."""
        if type(frames) is not list:
            return self._call_sites[CallSite("", ())]
        # A file's objects live until the file has been read, so ids are unique. Many calls share one list of frames, or
        # have lists of the same frames.
        call_site = self._call_site_of.get(id(frames))
        if call_site is None:
            key = tuple(map(id, frames))
            call_site = self._call_site_of.get(key)
            if call_site is None:
                call_site = self._call_site_of[key] = self._new_call_site(frames)
            self._call_site_of[id(frames)] = call_site
        return call_site

    def _new_call_site(self, frames: list[Any]) -> int:
        texts: list[str] = []
        for frame in frames:
            known = self._frames.get(id(frame))
            if known is None:
                known = self._frames[id(frame)] = self._frame_text(frame)
            if known:
                texts.append(known)
        whole = tuple(texts)
        return self._call_sites[CallSite(fields.users_frame(whole, self._WHOLE_FRAMES), whole)]

    def _frame_text(self, frame: object) -> str:
        written = fields.frame_text(frame)
        known = self._frame_texts.get(written)
        if known is None:
            self._frame_room -= len(written)
            if self._frame_room < 0:
                raise UnreadableDump(
                    f"its stack frames are more than {_MAX_FRAME_TEXT} characters; record fewer entries"
                )
            known = self._frame_texts[written] = written
        return known


@dataclass(slots=True)
class RawColumns:
    """A file's entries field by field, unchecked.

    Attributes:
        columns: field -> one value per entry. If an entry lacks the field, the value is an ellipsis, which no file can
            contain.
        count: number of entries.
        even: whether all entries have the same fields.
    """

    columns: dict[str, Sequence[Any]]
    count: int
    even: bool

    def present(self, name: str) -> Sequence[Any]:
        """The values of the entries that have the field."""
        column = self.columns.get(name, ())
        return column if self.even else [value for value in column if value is not ...]

    def required(self, name: str) -> Sequence[Any]:
        """The values of all entries.

        Raises:
            KeyError: an entry lacks the field.
        """
        column = self.present(name)
        if len(column) < self.count:
            raise KeyError(name)
        return column

    def optional(self, name: str) -> Sequence[Any]:
        """The values of all entries. None for entries that lack the field."""
        column = self.columns.get(name)
        if column is None:
            return [None] * self.count
        return column if self.even else [None if value is ... else value for value in column]


def _transposed(raw: list[Any]) -> RawColumns | None:
    """Turn entries into columns. None: not all are dicts, or they have too many fields or sets of fields."""
    if not raw or set(map(type, raw)) != {dict}:
        return None
    names, sizes = tuple(raw[0]), set(map(len, raw))
    if max(sizes) > _MAX_KEYS or min(sizes) < 2:
        return None
    if len(sizes) == 1:
        with contextlib.suppress(KeyError):
            columns = zip(*map(itemgetter(*names), raw), strict=True)
            return RawColumns(dict(zip(names, columns, strict=True)), len(raw), even=True)
    layouts = set(map(tuple, raw))
    every = {name for layout in layouts for name in layout}
    if len(layouts) > _MAX_LAYOUTS or len(every) > _MAX_KEYS:
        return None
    return RawColumns({name: [item.get(name, ...) for item in raw] for name in every}, len(raw), even=False)


def _bounded_pairs(column: Sequence[Any]) -> bool:
    """Return whether each value is a pair of short texts."""
    if not column:
        return True
    return (
        set(map(type, column)) <= {tuple, list}
        and set(map(len, column)) == {2}
        and fields.bounded_scalars(list(chain.from_iterable(column)))
    )


def _in_range(values: Sequence[int]) -> Integers | None:
    try:
        found = np.array(values, np.int64)
    except OverflowError:
        return None
    return found if fields.in_range(int(found.min()), int(found.max())) else None


def integer_column(values: Sequence[Any]) -> Integers:
    """`fields.integer` of each value."""
    found = _in_range(values) if set(map(type, values)) == {int} else None
    return integers([fields.integer(value) for value in values]) if found is None else found


def exact_column(values: Sequence[Any]) -> Integers:
    """`fields.exact` of each value. Raises ValueError if a value is not an integer."""
    found = _in_range(values) if set(map(type, values)) == {int} else None
    return integers([fields.exact(value) for value in values]) if found is None else found


def seconds_column(values: Sequence[Any], scale: float) -> Floats:
    """`fields.seconds` of each value."""
    if set(map(type, values)) <= {float, type(None)}:
        found: Floats = np.array(values, np.float64) / scale
        found[np.isinf(found)] = np.nan
        return found
    return floats([fields.seconds(value, scale) for value in values])


def times_column(values: Sequence[Any]) -> Integers:
    """`fields.integer` of each value. 0, which means that the time is not known, becomes `NONE`."""
    kinds = set(map(type, values))
    found = integer_column([value or 0 for value in values] if kinds == {int, type(None)} else values)
    found[found == 0] = NONE
    return found
