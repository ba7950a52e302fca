"""Opens the store that the options ask for."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from otel_fr_collector.given_files import read_text
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.journal import Journal
from otel_fr_collector.storage.reported_ends import FILE_NAME, ReportedEnds
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_backend import SqliteBackend
from otel_fr_collector.storage.store import Store

ID_FILE = "collector-id"


def open_store(folder: Path | None, url: str | None, metrics: Metrics, retention: Retention) -> Store | None:
    """Open the store. None: there is none, and incidents end with the process.

    Args:
        folder: the folder of the SQLite file. With a URL, it contains only the collector's id and reports of ends.
        url: the URL of a PostgreSQL database.

    Raises:
        NewerVersionError: a newer otel-fr has written the store.
        OSError: the folder cannot be used.
        ValueError: the URL cannot be used, or the packages for PostgreSQL are not installed.
    """
    ends = None if folder is None else open_ends(folder, metrics)
    if url is None:
        return None if folder is None else Store(SqliteBackend(folder, metrics, retention), metrics, ends=ends)
    try:
        from otel_fr_collector.storage.postgres_backend import PostgresBackend
    except ImportError as error:
        raise ValueError(f"--store needs psycopg: pip install 'otel-fr[collector,postgresql]' ({error})") from None
    return Store(PostgresBackend(url, collector_id(folder), metrics, retention), metrics, ends=ends)


def open_ends(folder: Path, metrics: Metrics) -> ReportedEnds:
    """Open the file of reports of ends that wait for verdicts."""
    return ReportedEnds(Journal(folder / FILE_NAME, metrics, "store", "reports of ends"))


def collector_id(folder: Path | None) -> str:
    """The collector's id in a shared database. It is the same after a restart if there is a data folder."""
    made = uuid.uuid4().hex
    if folder is None:
        return made
    path = folder / ID_FILE
    with contextlib.suppress(OSError, ValueError):
        return uuid.UUID(read_text(path).strip()).hex
    with contextlib.suppress(OSError):  # a full disk: another id after the next restart
        unfinished = path.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)  # it may be a pipe, and opening it would wait for a reader
        unfinished.write_text(made + "\n", "ascii")
        os.replace(unfinished, path)
    return made
