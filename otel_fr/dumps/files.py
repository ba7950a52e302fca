"""Finds the flight-recorder files of a folder, and the rank of each."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from otel_fr.dumps.model import Problem
from otel_fr.dumps.safe_parse import Limits, UnreadableDump
from otel_fr.ring.layout import MAGIC

MAX_FILES = 100_000
"""Files of a folder that are examined."""
MAX_DEPTH = 100
"""Depth of nested folders that are examined. Before Python 3.12, os.walk is recursive and fails after 900."""

_ENDINGS = (".gz", ".json", ".pickle", ".pkl", ".bin", ".dump", ".trace", ".ring")
_HEAD_BYTES = 1024 * 1024
_GZIP, _GZIP_BITS = b"\x1f\x8b", 31
_CHECKPOINT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of files of `torch.save` before torch 1.6."""
_SIGNS = (b"pg_config", b"otel_fr", b"profiling_name", b"collective_seq_id")
"""Every flight-recorder file, of any recorder, contains one of these words."""
_DOCUMENTS = (".css", ".html", ".js", ".md", ".py", ".rst", ".svg", ".toml", ".yaml", ".yml")
"""Suffixes of documentation and source files, which may contain these words, too. No recorder uses them."""
_MAX_NAMED = 3
_NAMED_RANK = re.compile(r"(?<![a-z])(local|node|group)?[_\-.]?rank[_\-.=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_T = TypeVar("_T")


def find(path: Path, prefix: str | None) -> tuple[list[Path], list[Problem]]:
    """Find the files of a folder and its subfolders, or the single file. Also return problems about unread parts."""
    if not path.is_dir():
        return [path], []
    found: list[Path] = []
    problems: list[Problem] = []

    def note(error: OSError) -> None:
        problems.append(Problem(str(error.filename), f"{error.strerror}: this folder was not read", is_unread=True))

    root = os.path.realpath(path)
    for folder, folders, names in os.walk(path, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = filter(os.path.islink, (os.path.join(folder, name) for name in folders))
        problems += [
            Problem(link, "a link to a folder: it was not read; name the folder", is_unread=True)
            for link in links
            if not Path(os.path.realpath(link)).is_relative_to(root)  # else its files are read where they are
        ]
        if folders and len(Path(folder).relative_to(path).parts) == MAX_DEPTH:
            folders.clear()
            problems.append(
                Problem(folder, f"its folders are more than {MAX_DEPTH} deep and were not read", is_unread=True)
            )
        # Hidden files are data of other programs, or a dump that is being written.
        wanted = sorted(name for name in names if name.startswith(prefix or "") and not name.startswith("."))
        found.extend(Path(folder, name) for name in wanted)
        if len(found) > MAX_FILES:
            text = f"more than {MAX_FILES} files; the rest was not read: name a smaller folder"
            return found[:MAX_FILES], [*problems, Problem(str(path), text, is_unread=True)]
    return found, problems


def read_each(paths: Iterable[Path], read: Callable[[Path], _T]) -> tuple[list[_T], list[Problem]]:
    """Call ``read`` for each file. Return the results, and a problem for each OSError or ValueError that it raised."""
    found: list[_T] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(read(path))
        except (OSError, ValueError) as error:
            problems.append(Problem(str(path), getattr(error, "strerror", None) or str(error)))
    return found, problems


def size(path: Path) -> int:
    """A file's size in bytes. 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def modified_ns(path: Path) -> int:
    """When a file was last written, by its file system. 0 if this cannot be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def is_ring(path: Path) -> bool:
    """Return whether a file begins like a ring file."""
    return _head(path, len(MAGIC)) == MAGIC


def may_be_one(path: Path, limits: Limits) -> bool:
    """Return False for files (logs, images, checkpoints, ...) that are certainly not flight-recorder files. Fast."""
    if not os.path.isfile(path):
        return True  # reading it reports why it cannot be used
    head = _head(path, 64)
    if head.startswith(_CHECKPOINT):
        return False
    if head.startswith(_GZIP):
        head = _head(path, 64, unpack=True) or head
    if head.startswith(MAGIC):
        return True
    if path.suffix.lower() in _DOCUMENTS:
        return False
    start = head.lstrip()[:1]
    if start and start in b"{[\x80(}]\x1f" and size(path) <= limits.max_bytes and _has_signs(path):
        return True
    return looks_like_one(path)


def looks_like_one(path: Path) -> bool:
    """Return whether name or content suggest a flight-recorder file. If such a file is unusable, it is reported."""
    suffix = path.suffix.lower()
    plain = suffix in _ENDINGS or not re.fullmatch(r"\.[a-z][a-z0-9]{0,9}", suffix)
    return (plain and suffix != ".json" and bool(_NUMBER.search(path.name))) or _has_signs(path)


def _has_signs(path: Path) -> bool:
    head = _head(path, _HEAD_BYTES, unpack=True)
    return head.startswith(MAGIC) or any(sign in head for sign in _SIGNS)


def _head(path: Path, count: int, unpack: bool = False) -> bytes:
    """The first ``count`` bytes; with ``unpack``, of a gzip file's first member. Empty if they cannot be read."""
    try:
        if not path.is_file():  # a pipe or a device would block
            return b""
        with path.open("rb") as file:
            head = file.read(count)
            if unpack and head.startswith(_GZIP):
                # Not gzip.GzipFile, which would search any number of empty members and zeros for the first byte.
                head = zlib.decompressobj(_GZIP_BITS).decompress(head + file.read(_HEAD_BYTES), count)
        return head
    except (OSError, zlib.error):
        return b""


def skipped(paths: Sequence[Path]) -> str:
    """One sentence about all files that are not flight-recorder files."""
    some = ", ".join(sorted(path.name for path in paths)[:_MAX_NAMED])
    more = ", ..." if len(paths) > _MAX_NAMED else ""
    count = len(paths)
    what = "1 file is not a flight-recorder file and was"
    what = what if count == 1 else f"{count} files are not flight-recorder files and were"
    return f"{what} skipped ({some}{more})"


def rank_of(path: Path, prefix: str = "") -> int | None:
    """The rank in the file's name, or, if the name has no number, in its folder's name (``rank_3``).

    Raises:
        UnreadableDump: several numbers in the name may be the rank.
    """
    if not _NUMBER.search(path.name) and _NAMED_RANK.fullmatch(path.parent.name):
        return rank_of_name(path.parent.name)
    return rank_of_name(path.name, prefix)


def rank_of_name(name: str, prefix: str = "") -> int | None:
    """The rank in a file's name: ``rank_1.json``, ``_dump_9``, ``trace_0.gz``, ``host12_rank_3_abc``. None: no number.

    The rank is the number after ``prefix`` (as with torchfrtrace's ``-p``), else the number after "rank", else the
    number at the end, else the only number.

    Raises:
        UnreadableDump: several numbers may be the rank.
    """
    stem = name
    while stem.lower().endswith(_ENDINGS):
        stem = stem.rpartition(".")[0]
    if prefix and name.startswith(prefix):
        number = re.match(r"\d{1,9}(?!\d)", name[len(prefix) :])
        if number:
            return int(number[0])
    named = {int(found[2]) for found in _NAMED_RANK.finditer(stem) if not found[1]}
    if len(named) == 1:
        return named.pop()
    numbers = _NUMBER.findall(stem)
    if not named and numbers and len(numbers[-1]) <= 9 and (stem.endswith(numbers[-1]) or len(numbers) == 1):
        return int(numbers[-1])
    if len(numbers) > 1:
        raise UnreadableDump(
            f"its rank is unknown: {name} contains several numbers; rename it so that it ends with the rank (trace_0)"
        )
    return None
