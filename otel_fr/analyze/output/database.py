"""``--output``: the flat database of ``torchfrtrace -o``, loadable without PyTorch and without executing code.

The tables and their first columns are the same as PyTorch's (torch 2.13, ``flight_recorder/components/types.py``).
PyTorch's file is a pickle of its own classes. The suffix of the file's name chooses the format: ``.json``, SQLite
(``.sqlite``, ``.sqlite3``, ``.db``), or a pickle of plain values (``.pkl``, ``.pickle``, no suffix, or a suffix that is
not a word).
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import prod
from pathlib import Path

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.collectives import Collective
from otel_fr.analyze.output.replacing import replacing
from otel_fr.match import CallState

FORMAT = 1
"""Incremented when a column is removed or changes its meaning. New columns are appended."""

COLUMNS = {
    "groups": ("id", "desc", "size", "name"),
    "memberships": ("group_id", "global_rank"),
    "tracebacks": ("id", "frames"),
    "collectives": (
        "id", "group_id", "pass_check", "collective_seq_id", "p2p_seq_id", "record_id", "pg_desc", "collective_name",
        "input_sizes", "output_sizes", "expected_ranks", "collective_state", "collective_frames", "input_numel",
        "output_numel", "missing_ranks", "mismatch_collectives", "type_of_mismatch",
    ),
    "ncclcalls": (
        "id", "collective_id", "group_id", "global_rank", "traceback_id", "collective_type", "sizes", "record_id",
        "state", "created_ns", "started_ns", "ended_ns", "output_sizes", "dtypes", "reduce_op", "root", "peer", "tag",
    ),
}  # fmt: skip
"""The columns of each table."""

SQLITE = (".sqlite", ".sqlite3", ".db")
JSON = ".json"
PICKLE = (".pkl", ".pickle")
Row = tuple[object, ...]


def write_database(analysis: Analysis, path: Path) -> None:
    """Write the tables to ``path`` atomically, replacing an existing file.

    Raises:
        OSError: the file cannot be written.
    """
    tables, suffix = _Tables(analysis), path.suffix.lower()
    try:
        with replacing(path) as temporary:
            if suffix in SQLITE:
                _write_sqlite(tables, temporary)
            elif suffix == JSON:
                with temporary.open("w", encoding="utf-8") as file:
                    file.writelines(_json_parts(tables))
            else:
                with temporary.open("wb") as out:
                    pickle.dump(tables.plain(), out, protocol=4)
    except sqlite3.Error as error:
        raise OSError(str(error)) from error


def _json_parts(tables: _Tables) -> Iterator[str]:
    yield json.dumps({"format": FORMAT, "columns": COLUMNS})[:-1]
    for table in COLUMNS:
        yield f',\n"{table}": ['
        for number, row in enumerate(tables.rows(table)):
            yield (",\n" if number else "\n") + json.dumps(row)
        yield "]"
    yield "}\n"


def _write_sqlite(tables: _Tables, path: Path) -> None:
    """Lists and dicts are stored as JSON text, for SQLite's ``json_each``."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for setting in ("journal_mode", "synchronous"):  # safe, since an incomplete file replaces nothing
            connection.execute(f"PRAGMA {setting} = OFF")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        for table, columns in COLUMNS.items():
            numbered = table != "groups"  # ids of groups are text
            typed = ", ".join("id INTEGER PRIMARY KEY" if numbered and name == "id" else name for name in columns)
            connection.execute(f"CREATE TABLE {table} ({typed})")
            marks = ", ".join("?" * len(columns))
            rows = (tuple(map(_sqlite_value, row)) for row in tables.rows(table))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - names of our own
        connection.execute("CREATE INDEX ncclcalls_collective ON ncclcalls (collective_id)")


def _sqlite_value(value: object) -> object:
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class _Tables:
    """The rows of each table, generated on demand."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._found = analysis.by_key
        self._stacks: dict[tuple[str, ...], int] = {(): 0}
        for collective in analysis.collectives:
            for calls in collective.calls.values():
                for entry in calls:
                    self._stacks.setdefault(entry.frames, len(self._stacks))

    def plain(self) -> dict[str, object]:
        columns = {table: list(names) for table, names in COLUMNS.items()}
        return {"format": FORMAT, "columns": columns, **{table: list(self.rows(table)) for table in COLUMNS}}

    def rows(self, table: str) -> Iterator[Row]:
        groups = self._analysis.groups.values()
        if table == "groups":
            return ((group.id, group.description, len(group.ranks), group.name) for group in groups)
        if table == "memberships":
            return ((group.id, rank) for group in groups for rank in group.ranks)
        if table == "tracebacks":
            return ((number, "\n".join(frames)) for frames, number in self._stacks.items())
        if table == "collectives":
            return (self._collective(n, collective) for n, collective in enumerate(self._analysis.collectives))
        return self._calls()

    def _collective(self, number: int, collective: Collective) -> Row:
        first = collective.calls[min(collective.calls)][-1]
        signature, group = first.signature, collective.group
        finding = self._found.get(collective.name)
        p2p = collective.stream == "p2p"
        states = {calls[-1].state for calls in collective.calls.values()}
        return (
            number,
            group.id,
            finding is None,
            0 if p2p else collective.sequence_id,
            collective.sequence_id if p2p else 0,
            first.record,
            f"{group.name}:{group.description}" if group.description != "undefined" else group.name,
            f"{first.backend}:{collective.operation}" if first.backend else collective.operation,
            _lists(signature.input_sizes),
            _lists(signature.output_sizes),
            sorted(collective.members),
            (states.pop() if len(states) == 1 else CallState.IN_FLIGHT).value,
            list(first.frames),
            sum(map(prod, signature.input_sizes)),
            sum(map(prod, signature.output_sizes)),
            list(collective.missing_ranks),
            {} if finding is None else {str(rank): value for rank, value in sorted(finding.values.items())},
            None if finding is None else finding.category.value,
        )

    def _calls(self) -> Iterator[Row]:
        number = 0
        for id_, collective in enumerate(self._analysis.collectives):
            for rank, calls in collective.calls.items():
                for entry in calls:
                    signature = entry.signature
                    yield (
                        number,
                        id_,
                        collective.group.id,
                        rank,
                        self._stacks[entry.frames],
                        signature.operation,
                        _lists(signature.input_sizes),
                        entry.record,
                        entry.state.value,
                        entry.created_ns,
                        entry.started_ns,
                        entry.ended_ns,
                        _lists(signature.output_sizes),
                        [*signature.input_dtypes, *signature.output_dtypes],
                        signature.reduce_op,
                        signature.root,
                        signature.peer,
                        signature.tag,
                    )
                    number += 1


def _lists(sizes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return [list(shape) for shape in sizes]
