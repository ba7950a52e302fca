"""Decides which database files are damaged, and moves them aside. Nothing is deleted.

Code that has a file open closes it after any error, and opens it again: only `open_file` decides about damage.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

SUFFIXES = ("", "-wal", "-shm")
"""Suffixes of the files of one SQLite database: the database, its write-ahead log, and the log's index."""
MAX_ASIDE = 10
"""Damaged versions of one database that are kept. A disk that damages every new file must not be filled with them."""
MAX_VERSION = 1_000
"""Largest version that a newer otel-fr may have written. A greater number means damage."""


class DamagedError(sqlite3.DatabaseError):
    """The file is not a usable database of the collector, although SQLite may open it."""


class NewerVersionError(OSError):
    """A newer otel-fr has written the database, so this one does not change it. The text says what to do."""


def is_damage(error: Exception) -> bool:
    """Whether an error means that the file is damaged; False for a full disk, a lock, an I/O error.

    Python raises DatabaseError itself for SQLITE_CORRUPT and SQLITE_NOTADB, and a subclass for errors that may pass.
    """
    return type(error) in (sqlite3.DatabaseError, DamagedError)


def check_kind(path: Path) -> None:
    """Check that a database's files are regular ones that this process may read and write, or that they are missing.

    For any other file, SQLite reports only that it cannot be opened, as it does if the process has too many open files.
    SQLite takes an empty file for a new database. Here, it counts as a database that a power cut has emptied.

    Raises:
        DamagedError: a file is neither.
        OSError: a file is a link into a missing folder. The folder's disk may be mounted later, so this is no damage.
    """
    for suffix in SUFFIXES:
        one = _sibling(path, suffix)
        try:
            found = os.stat(one)
        except FileNotFoundError:
            target = Path(os.path.realpath(one))
            if one.is_symlink() and not target.parent.is_dir():
                raise FileNotFoundError(f"{one.name} is a link into {target.parent}, which does not exist") from None
            continue
        except OSError as error:  # a circle of links, a name below a file
            raise DamagedError(f"{one.name}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise DamagedError(f"{one.name} is not a regular file")
        if not suffix and not found.st_size:
            raise DamagedError("it is empty")
        if not os.access(one, os.R_OK | os.W_OK):
            raise DamagedError(f"{one.name} cannot be read and written by this user")


class Found(Enum):
    """What is at the path of an open database."""

    SAME = 1
    NO_LOG = 2
    """The same database without its log or the log's index. The connection writes the log into it when it ends."""
    OTHER = 3
    """Nothing, another file, or an empty one."""


class OpenedFile:
    """Checks whether the files that a connection has open are still at their path.

    If somebody deletes, renames, replaces or empties them, the connection continues as if nothing had happened, and
    what it writes is lost when it ends. No file is opened here: closing it would drop SQLite's locks on it
    (sqlite.org/howtocorrupt.html, 2.2).

    Args:
        path: path of the database, which is open in WAL mode.
    """

    def __init__(self, path: Path) -> None:
        path = Path(os.path.realpath(path))  # SQLite puts the log beside the file itself, not beside a link to it
        self._files = [_sibling(path, suffix) for suffix in SUFFIXES]
        self._known = [_identity(one) for one in self._files]

    def find(self) -> Found:
        now = [_identity(one, least) for one, least in zip(self._files, (1, 0, 0), strict=True)]
        if now[0] is None or now[0] != self._known[0]:
            return Found.OTHER
        self._known = [known or found for known, found in zip(self._known, now, strict=True)]
        return Found.SAME if now == self._known else Found.NO_LOG

    def remove_log(self) -> None:
        """Remove the log of a database that is no longer at its path, once its connection is closed.

        Otherwise, SQLite would write the log into the database that is there now.

        Raises:
            OSError: the log cannot be removed.
        """
        for known, one in list(zip(self._known, self._files, strict=True))[1:]:
            if known is not None and _identity(one) == known:
                one.unlink()


def file_version(db: sqlite3.Connection) -> int:
    """Version of the file's format, 0 for a new file.

    The schema is not read: an older SQLite may take a newer schema for damage.

    Raises:
        DamagedError: the number is not a version.
        sqlite3.Error: the version cannot be read.
    """
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if not 0 <= version <= MAX_VERSION:
        raise DamagedError(f"its version is {version}")
    return version


def check_tables(db: sqlite3.Connection, wanted: Mapping[str, Sequence[str]]) -> None:
    """Raise DamagedError if a table is missing, or has other columns than these."""
    for table, columns in wanted.items():
        if table_columns(db, table) != list(columns):
            raise DamagedError(f"its table {table} is missing or has other columns")


def read_schema(db: sqlite3.Connection) -> bool:
    """Make a new connection read the file's schema; returns whether there is any.

    Raises:
        DamagedError: the schema is not UTF-8. Python cannot even decode SQLite's message then.
        sqlite3.Error: the schema cannot be read.
    """
    # A byte that is not text must not make the other rows unreadable.
    db.text_factory = lambda data: data.decode(errors="replace")
    try:
        return db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    except UnicodeDecodeError:
        raise DamagedError("its schema is not UTF-8") from None


def table_columns(db: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns; empty: there is no such table."""
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def move_aside(path: Path, wall: Callable[[], float]) -> Path:
    """Rename the files of a database to ``NAME.damaged-TIME``, with their suffixes; returns the new path.

    Call it before the connection is closed: closing it would delete the write-ahead log under its old name.

    Raises:
        OSError: a file cannot be renamed, or `MAX_ASIDE` databases are kept already.
    """
    prefix = f"{path.name}.damaged-"
    known = [name for name in os.listdir(path.parent) if name.startswith(prefix)]
    kept = {name[: -len(end)] if (end := name[-4:]) in SUFFIXES else name for name in known}
    if len(kept) >= MAX_ASIDE:
        raise OSError(f"{len(kept)} damaged files are kept already: remove {path}.damaged-*")
    began = int(wall())
    free = (name for second in range(began, began + MAX_ASIDE) if (name := f"{prefix}{second}") not in kept)
    aside = path.with_name(next(free))
    for suffix in reversed(SUFFIXES):  # the database last: as long as it is there, the next start finds the rest
        one = _sibling(path, suffix)
        if os.path.lexists(one):
            one.rename(_sibling(aside, suffix))
    return aside


def open_file(
    path: Path,
    newest: int,
    prepare: Callable[[sqlite3.Connection], None],
    on_damage: Callable[[], None],
    *,
    wall: Callable[[], float] = time.time,
    **options: Any,
) -> sqlite3.Connection:
    """Open a database. If it is damaged, move it aside, log this, and create a new one.

    Args:
        newest: the newest version that is known here.
        prepare: makes the connection ready for use.
        on_damage: called once a damaged file has been moved aside.
        options: arguments of `sqlite3.connect`.

    Raises:
        NewerVersionError: the file has a newer version.
        sqlite3.Error: the file cannot be opened, and is not damaged.
        OSError: the damaged file cannot be moved aside; or raised by ``prepare``.
    """
    try:
        return _opened(path, newest, prepare, options, lambda: move_aside(path, wall))
    except _MovedError as moved:
        _log.error("%s is damaged (%s): moved to %s, starting a new one", path, *moved.args)
        on_damage()
        return _opened(path, newest, prepare, options, None)


class _MovedError(Exception):
    """A damaged file was moved aside. The arguments are the damage and the file's new name."""


def _opened(
    path: Path,
    newest: int,
    prepare: Callable[[sqlite3.Connection], None],
    options: Mapping[str, Any],
    move: Callable[[], Path] | None,
) -> sqlite3.Connection:
    """Open the database. If it is damaged and ``move`` is given, move it aside before closing it; raise _MovedError."""
    with contextlib.ExitStack() as undo:
        try:
            check_kind(path)
            if not path.exists():
                undo.callback(_remove_empty, Path(os.path.realpath(path)))
            db: sqlite3.Connection = sqlite3.connect(path, **options)
            undo.callback(db.close)
            version = file_version(db)
            if version > newest:
                raise NewerVersionError(
                    f"{path} was written by a newer otel-fr (version {version}, this one knows {newest}):"
                    " use that otel-fr, or give --data another folder"
                )
            if read_schema(db) and not version:
                raise DamagedError("it is a database of another program")
            prepare(db)
        except sqlite3.Error as error:
            if move is None or not is_damage(error):
                raise
            raise _MovedError(error, move().name) from error
        undo.pop_all()
    return db


def _remove_empty(path: Path) -> None:
    """Remove the empty file of a failed attempt, as on a full disk: the next attempt would take it for damaged."""
    if _identity(path) is not None and _identity(path, 1) is None:
        path.unlink()


def _identity(path: Path, least: int = 0) -> tuple[int, int] | None:
    """Device and inode of the file at ``path``; None: there is no file of at least ``least`` bytes."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size >= least else None


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
