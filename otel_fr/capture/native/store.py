"""Finds compiled kernels: kernels shipped with otel-fr, and kernels compiled on this machine."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
SOURCES: Final = ("api.h", "device_work.hpp", "followed_work.hpp", "kernel.cpp")
SHIPPED: Final = FOLDER / "kernels"
_SEAL: Final = b"otel-fr\1"
"""Prefix of the checksum appended to a library. The dynamic linker reads nothing after the library's own end."""
_DIGITS: Final = 12
"""Hex digits of the sources' hash, which only distinguishes versions of otel-fr. It is no protection."""


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of kernels that were compiled on this machine. It need not exist.

    Raises:
        OSError: this user has no home folder.
    """
    base = env.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "otel-fr" / "kernels"
    except RuntimeError:
        raise OSError("no cache folder: set HOME or XDG_CACHE_HOME") from None


def base_version(torch: ModuleType) -> str:
    """Return torch's version up to the "+": CPU and CUDA builds have the same interfaces."""
    return str(torch.__version__).split("+")[0]


def file_name(version: str, new_abi: bool) -> str:
    """Return the name of the library for a torch of this base version.

    Args:
        new_abi: True if torch was compiled with the C++11 ABI of the C++ library.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((FOLDER / name).read_bytes())
    return f"kernel-torch{version}-cxx11{int(new_abi)}-{digest.hexdigest()[:_DIGITS]}.so"


def running_file_name(torch: ModuleType) -> str:
    """Return the name of the library for the running torch."""
    return file_name(base_version(torch), bool(torch._C._GLIBCXX_USE_CXX11_ABI))


def candidates(torch: ModuleType, env: Mapping[str, str] = os.environ) -> Iterator[tuple[Path, int]]:
    """Yield the libraries that may be loaded for the running torch, best first: path and open descriptor.

    The caller must close the descriptor. The path may name another file later.
    """
    name = running_file_name(torch)
    with contextlib.suppress(OSError):
        yield SHIPPED / name, open_whole(SHIPPED / name)
    with contextlib.suppress(OSError):
        folder = cache_folder(env)
        check_private(folder)
        yield folder / name, open_whole(folder / name, is_own)


def why_missing(torch: ModuleType, env: Mapping[str, str] = os.environ) -> str:
    """Return, for people, why the cache has no kernel that may be loaded for the running torch."""
    name = running_file_name(torch)
    try:
        folder = cache_folder(env)
        if not os.path.lexists(folder):
            return "none was compiled on this machine"
        check_private(folder)
    except OSError as error:
        return str(error)
    kernel = folder / name
    if not os.path.lexists(kernel):
        return f"{folder} has none"
    if not is_own_file(kernel):
        return f"{kernel} must be a file that only this user can change"
    return f"{kernel} is damaged"


def seal(kernel: Path) -> None:
    """Append a checksum to a library that was just compiled, and write it to the disk (fsync). Raises OSError."""
    with open(kernel, "r+b") as file:
        content = file.read()
        file.write(_SEAL + hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def open_whole(kernel: Path, accepts: Callable[[os.stat_result], bool] = lambda _: True) -> int:
    """Open a library and check its checksum. Return the descriptor.

    A library that was damaged later, for example by a crash of the node, can kill the process that loads it.

    Raises:
        OSError: the library cannot be read, is not accepted by ``accepts``, or is damaged.
    """
    handle = os.open(kernel, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not accepts(os.fstat(handle)):
            raise OSError(f"{kernel} must be a file that only this user can change")
        with open(handle, "rb", closefd=False) as file:
            content = file.read()
        end = len(content) - len(_SEAL) - hashlib.sha256().digest_size
        if end <= 0 or content[end:] != _SEAL + hashlib.sha256(content[:end]).digest():
            raise OSError(f"{kernel} is damaged")
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_whole(kernel: Path) -> bool:
    """Return True if the library matches its checksum."""
    try:
        os.close(open_whole(kernel))
    except OSError:
        return False
    return True


def is_own_file(path: Path) -> bool:
    """Return True if this is a regular file of this user that no other user may write."""
    try:
        return is_own(os.lstat(path))
    except OSError:
        return False


def is_own(status: os.stat_result) -> bool:
    """Like `is_own_file`, for the status of an open file."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def check_private(folder: Path) -> None:
    """Raises OSError unless the folder belongs to this user and only this user can change it. The text says why."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(f"{folder} is not a folder of this user: remove it, or set XDG_CACHE_HOME")
    if stat.S_IMODE(status.st_mode) != 0o700:
        raise OSError(f"{folder} has mode {stat.S_IMODE(status.st_mode):o}; remove it, or empty it and set mode 700")
    _check_above(folder)


def _check_above(folder: Path) -> None:
    """Raises OSError if other users can replace this folder. ssh checks its own files in the same way.

    Whoever can write a folder can rename its entries, unless the folder is sticky, such as /tmp.
    """
    trusted = {0, os.geteuid(), _unmapped()}
    for above in reversed(Path(os.path.realpath(folder)).parents):
        status = os.stat(above)
        if status.st_uid not in trusted:
            raise OSError(f"{above}, above {folder}, belongs to another user: set XDG_CACHE_HOME")
        writable = status.st_mode & 0o022
        if writable and not status.st_mode & stat.S_ISVTX and (writable & 0o002 or not _is_private_group(status)):
            raise OSError(f"{above}, above {folder}, can be changed by others: chmod go-w, or set XDG_CACHE_HOME")
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return  # no other user can enter the folders below


def _is_private_group(status: os.stat_result) -> bool:
    """Return True if only the folder's owner is in the folder's group. Users with such groups have the umask 002, so
    their folders are writable for the group (Debian's user-group-modes.patch of OpenSSH)."""
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and set(group.gr_mem) <= {owner.pw_name}


def _unmapped() -> int:
    """Return the user id that owns the files of users unknown in this user namespace, or -1 if all users are known.

    In Apptainer, root is such an unknown user (user_namespaces(7)).
    """
    with contextlib.suppress(OSError, ValueError):
        inside, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
        if int(inside) or int(count) < 2**32 - 1:
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return -1


def make_private(folder: Path) -> None:
    """Create the folder for this user alone.

    Raises:
        OSError: the folder cannot be created, or is no folder, or belongs to another user, or others can use it:
            files that they may have put there are not trusted.
    """
    try:
        for path in (*reversed(folder.parents), folder):
            if not os.path.lexists(path):
                path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:  # not a folder: `check_private` says so
        pass
    except OSError as error:
        raise OSError(f"{folder} cannot be created ({error.strerror}): set XDG_CACHE_HOME to another folder") from None
    check_private(folder)
