"""The calls of a run as columns, file by file, for data frames, CSV and Parquet. Needs only numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from otel_fr.analyze.assemble.clocks import LATEST
from otel_fr.analyze.assemble.messages import Messages
from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps import fields
from otel_fr.dumps.columns import NONE, P2P, STATES, Entries, Floats, Integers
from otel_fr.dumps.model import Dump
from otel_fr.encodable import encodable
from otel_fr.identity import STREAMS
from otel_fr.match import Group
from otel_fr.match.model import Sizes

Kind = Literal["integer", "number", "optional", "text", "time"]
"""Type of a column. integer: int64. number: float64, NaN if not known. optional: integer or None. text: "" if there is
none. time: ns since 1970 as int64, where the least int64 means "not known", as in numpy and pandas."""

Chunk = dict[str, npt.NDArray[Any]]

CALL_COLUMNS: dict[str, Kind] = {
    "rank": "integer",
    "group": "text",
    "group_name": "text",
    "group_description": "text",
    "stream": "text",
    "sequence_id": "integer",
    "record": "integer",
    "operation": "text",
    "state": "text",
    "created": "time",
    "started": "time",
    "ended": "time",
    "duration_s": "number",
    "age_s": "number",
    "input_sizes": "text",
    "output_sizes": "text",
    "input_dtypes": "text",
    "output_dtypes": "text",
    "input_bytes": "optional",
    "output_bytes": "optional",
    "reduce_op": "text",
    "root": "optional",
    "peer": "optional",
    "tag": "optional",
    "error": "text",
    "site": "text",
    "backend": "text",
    "thread": "text",
}
"""Name -> type of each column of the calls. docs/guide/analyze.md describes them."""


def call_chunks(run: Run) -> Iterator[Chunk]:
    """The calls of each file, oldest first, with one array for each of `CALL_COLUMNS`."""
    for dump, messages in zip(run.dumps, run.messages, strict=True):
        groups = {key: run.evidence.groups[id_] for key, id_ in run.ids[dump.rank].items()}
        yield _chunk(dump, messages, groups)


def empty_chunk() -> Chunk:
    """The columns without rows."""
    kinds: dict[Kind, type] = {"integer": np.int64, "number": np.float64, "time": np.int64}
    return {name: np.zeros(0, kinds.get(kind, object)) for name, kind in CALL_COLUMNS.items()}


def _chunk(dump: Dump, messages: Messages, groups: dict[str, Group]) -> Chunk:
    if not (dump.entries.stream == P2P).any():
        return _columns(dump.rank, dump.entries, groups)
    # Sends and receives come from `messages`, where peers are global ranks.
    parts = [_columns(dump.rank, dump.entries.take(dump.entries.stream != P2P), groups)]
    parts.append(_columns(dump.rank, messages.entries, groups))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in CALL_COLUMNS}
    order = np.argsort(joined["record"], kind="stable")
    return {name: column[order] for name, column in joined.items()}


def _columns(rank: int, entries: Entries, groups: dict[str, Group]) -> Chunk:
    known = [groups.get(key, Group("", "", "", ())) for key in entries.groups]
    signatures, labels = entries.signatures, entries.labels
    group, signature, label = entries.group, entries.signature, entries.label
    return {
        "rank": np.full(len(entries), rank, np.int64),
        "group": _through([of.id for of in known], group),
        "group_name": _through([of.name for of in known], group),
        "group_description": _through([of.description for of in known], group),
        "stream": _through(STREAMS, entries.stream),
        "sequence_id": entries.sequence_id,
        "record": entries.record,
        "operation": _through([s.operation for s in signatures], signature),
        "state": _through([state.value for state in STATES], entries.state),
        "created": _times(entries.created, len(entries)),
        "started": _times(entries.started, len(entries)),
        "ended": _times(entries.ended, len(entries)),
        "duration_s": _numbers(entries.duration, len(entries)),
        "age_s": _numbers(entries.age, len(entries)),
        "input_sizes": _through([_sizes(s.input_sizes) for s in signatures], signature),
        "output_sizes": _through([_sizes(s.output_sizes) for s in signatures], signature),
        "input_dtypes": _through([" ".join(s.input_dtypes) for s in signatures], signature),
        "output_dtypes": _through([" ".join(s.output_dtypes) for s in signatures], signature),
        "input_bytes": _through([fields.bytes_of(s.input_sizes, s.input_dtypes) for s in signatures], signature),
        "output_bytes": _through([fields.bytes_of(s.output_sizes, s.output_dtypes) for s in signatures], signature),
        "reduce_op": _through([s.reduce_op or "" for s in signatures], signature),
        "root": _through([s.root for s in signatures], signature),
        "peer": _through([s.peer for s in signatures], signature),
        "tag": _through([s.tag for s in signatures], signature),
        "error": _through([of.error or "" for of in labels], label),
        "site": _through([of.site for of in entries.call_sites], entries.call_site),
        "backend": _through([of.backend for of in labels], label),
        "thread": _through([of.thread for of in labels], label),
    }


def _through(table: Sequence[object], column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Replace the indices in a column by their values in a table. Rows share values; texts can be encoded as UTF-8."""
    values = np.empty(max(len(table), 1), object)
    for index, value in enumerate(table):
        values[index] = encodable(value) if isinstance(value, str) else value
    found: npt.NDArray[Any] = values[column]
    return found


def _times(column: Integers | None, count: int) -> Integers:
    """The plausible times. Others become `NONE`."""
    if column is None:
        return np.full(count, NONE, np.int64)
    return np.where((column > 0) & (column < LATEST), column, NONE)


def _numbers(column: Floats | None, count: int) -> Floats:
    return np.full(count, np.nan) if column is None else column


def _sizes(sizes: Sizes) -> str:
    return str([list(shape) for shape in sizes]) if sizes else ""
