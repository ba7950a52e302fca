"""Database files, and damage that they may have suffered since a program last closed them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

PAGE = 4_096


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _header_only(path: Path) -> None:
    os.truncate(path, 100)


def _wrong_schema_page(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\x5a" * (PAGE - 100) + data[PAGE:])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "note").write_text("an operator's copy")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _folder_as_log(path: Path) -> None:
    Path(f"{path}-wal").mkdir()


def _folder_as_index(path: Path) -> None:
    Path(f"{path}-shm").mkdir()


def _other_program(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")


def _other_tables(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if not name.startswith("sqlite_"):
                db.execute(f"DROP TABLE {name}")
                db.execute(f"CREATE TABLE {name} (other TEXT)")
        db.commit()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "garbage": _garbage,
    "empty": _empty,
    "half of it": _half,
    "its header only": _header_only,
    "wrong schema page": _wrong_schema_page,
    "a folder": _folder,
    "a pipe": _pipe,
    "a circle of links": _circle,
    "a folder as write-ahead log": _folder_as_log,
    "a folder as index of the log": _folder_as_index,
    "another program's": _other_program,
    "other tables": _other_tables,
}
"""Name -> a function that damages a closed database file."""


def spoil_pages(path: Path, first: int) -> None:
    """Overwrite all pages from ``first`` on in place, as a broken disk would. Page 0 is the first."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(first * PAGE)
        file.write(b"\x5a" * (size - first * PAGE))
