"""Ring files on disk: their private folder, their creation with reserved space, and the list of existing files."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from otel_fr.ring.layout import Layout

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a folder of our own with mode 0700 is made in it


def _name() -> str:
    return f"otel-fr-{os.geteuid()}"


def ring_folders(own: Path | None) -> list[Path]:
    """Return the folders where a rank's ring may be: ``own`` if set, else shared memory and the temporary folder.

    A relative path becomes absolute, because the program may change the working directory later.
    """
    return [own.absolute()] if own else list(dict.fromkeys([Path(SHARED_MEMORY), Path(tempfile.gettempdir())]))


def ring_files(bases: Iterable[Path]) -> Iterator[Path]:
    """Yield this user's files in the private folders of ``bases``: ring files and other files, but no stack files."""
    for folder in dict.fromkeys(base / _name() for base in bases):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid():
                yield from sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".stacks")


def private_folder(base: Path) -> Path:
    """Return ``base/otel-fr-UID``, owned by this user and closed to others. Create it if it is missing.

    Raises:
        OSError: the folder cannot be created, belongs to another user, or is not a folder.
    """
    uid = os.geteuid()
    folder = base / _name()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise OSError(errno.EPERM, f"{folder} is not a folder of this user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(folder, 0o700)
    return folder


def create_file(folder: Path, name: str, size: int) -> tuple[Path, mmap.mmap]:
    """Create and map a file of ``size`` zeros. Raises OSError, and then leaves no file behind."""
    for number in range(1000):
        path = folder / (name if number == 0 else f"{name}.{number}")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            continue
    else:
        raise OSError(errno.EEXIST, f"{folder / name} and 999 more of that name exist")
    try:
        os.fchmod(handle, 0o600)
        # Reserve the space now: a page that cannot be allocated later is a SIGBUS in the training process.
        os.posix_fallocate(handle, 0, size)
        # Map all pages now, if the system can: a page mapped later is a page fault in the training thread.
        return path, mmap.mmap(handle, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def new_ring(folders: Sequence[Path], name: str, layout: Layout) -> Iterator[tuple[Path, mmap.mmap]]:
    """Create a file for a ring in the first of ``folders`` that can hold it. Yield its path and its mapping of zeros.

    The file is removed if the block, which writes the header, fails.

    Raises:
        OSError: no folder can hold the file. The text gives the reason for each folder.
        ValueError: ``name`` is not a file name.
    """
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a file name")
    path, mapping = _create_in_first(folders, name, layout.file_size)
    try:
        yield path, mapping
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _create_in_first(folders: Sequence[Path], name: str, size: int) -> tuple[Path, mmap.mmap]:
    failures: list[str] = []
    number = errno.ENOENT
    for base in folders:
        try:
            return create_file(private_folder(base), name, size)
        except OSError as error:
            failures.append(f"{base}: {error.strerror or error}")
            number = error.errno or number
    reasons = "; ".join(failures) or "none given"
    raise OSError(number, f"no folder can hold a ring of {size} bytes ({reasons})")
