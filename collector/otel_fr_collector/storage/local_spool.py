"""What waits on this machine's disk for the database server: the same file as a store without a server.

So the incidents of a collector that used the file before move to the database.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.storage.batch import Batch, FinishedJob, IncidentRow
from otel_fr_collector.storage.sqlite_backend import SqliteBackend

_ORDERS = {"incidents": "changed, rowid", "runs": "rowid", "notes": "rowid", "jobs": "ended, rowid"}
"""By table, the order in which its rows move to the server."""


class LocalSpool(SqliteBackend):
    """The file; its rows are deleted once the server has them."""

    def held(self, limit: int) -> Batch:
        """The oldest rows, ``limit`` of each kind at most; nothing if the file cannot be read."""
        db = self._db
        if db is None:
            return Batch()
        try:
            incidents, runs, notes, jobs = (
                db.execute(f"SELECT * FROM {table} ORDER BY {order} LIMIT ?", (limit,)).fetchall()  # noqa: S608  constants
                for table, order in _ORDERS.items()
            )
        except sqlite3.Error as error:
            self.broken(error)
            return Batch()
        rows = [IncidentRow(*row) for row in incidents if _is_row(row, "ssissssffss")]
        return Batch(
            {row.key: row for row in rows},
            {RunId(*row[:3]): row[3] for row in runs if _is_row(row, "siss")},
            {(row[0], row[1]): row[2] for row in notes if _is_row(row, "sss")},
            [FinishedJob(*row) for row in jobs if _is_row(row, "ssfsb")],
        )

    def forget(self, limit: int) -> None:
        """Delete what `held` has returned with the same limit, and the damaged rows beside it."""
        db = self._db
        if db is None:
            return
        try:
            with db:
                for table, order in _ORDERS.items():
                    some = f"SELECT rowid FROM {table} ORDER BY {order} LIMIT ?"  # noqa: S608  constants
                    db.execute(f"DELETE FROM {table} WHERE rowid IN ({some})", (limit,))  # noqa: S608
        except sqlite3.Error as error:
            self.broken(error)

    def is_empty(self) -> bool:
        """Nothing waits in the file, or it cannot be read."""
        db = self._db
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                return not any(
                    db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()  # noqa: S608
                    for table in _ORDERS
                )
        return True


_KINDS: dict[str, type | tuple[type, ...]] = {"s": str, "i": int, "f": (float, int), "b": bytes}


def _is_row(row: tuple[Any, ...], kinds: str) -> bool:
    """Whether the values are texts, integers, floats and bytes as ``kinds`` says; a text in column 7 may be NULL."""
    return all(
        isinstance(value, _KINDS[kind]) or (value is None and column == 6)
        for column, (value, kind) in enumerate(zip(row, kinds, strict=True))
    )
