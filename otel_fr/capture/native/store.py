"""Where compiled kernels are: those that came with otel-fr, and those that were compiled on this machine."""

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
"""Begins what is appended to a library; the dynamic linker reads nothing behind the library's own end."""
_DIGITS: Final = 12
"""Of the sources' hash: tells versions of otel-fr apart, and guards against nothing."""


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """The folder of kernels that were compiled on this machine. It need not exist.

    Raises:
        OSError: this user has no home folder.
    """
    base = env.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "otel-fr" / "kernels"
    except RuntimeError:
        raise OSError("no cache folder: set HOME or XDG_CACHE_HOME") from None


def base_version(torch: ModuleType) -> str:
    """torch's version without what follows "+": CPU and CUDA builds have the same interfaces."""
    return str(torch.__version__).split("+")[0]


def file_name(version: str, new_abi: bool) -> str:
    """Name of the library for a torch of this base version.

    Args:
        new_abi: torch was compiled with the C++11 ABI of the C++ library.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((FOLDER / name).read_bytes())
    return f"kernel-torch{version}-cxx11{int(new_abi)}-{digest.hexdigest()[:_DIGITS]}.so"


def running_file_name(torch: ModuleType) -> str:
    """Name of the library for the running torch."""
    return file_name(base_version(torch), bool(torch._C._GLIBCXX_USE_CXX11_ABI))


def candidates(torch: ModuleType, env: Mapping[str, str] = os.environ) -> Iterator[tuple[Path, int]]:
    """The libraries for the running torch that may be loaded, best first: path, and descriptor, which is the caller's.

    What is at the path later may be another file.
    """
    name = running_file_name(torch)
    with contextlib.suppress(OSError):
        yield SHIPPED / name, open_whole(SHIPPED / name)
    with contextlib.suppress(OSError):
        folder = cache_folder(env)
        check_private(folder)
        yield folder / name, open_whole(folder / name, is_own)


def why_missing(torch: ModuleType, env: Mapping[str, str] = os.environ) -> str:
    """Why the cache has no kernel for the running torch that may be loaded, for people."""
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
    """Append a checksum to a library that was just compiled, and have all of it on the disk. Raises OSError."""
    with open(kernel, "r+b") as file:
        content = file.read()
        file.write(_SEAL + hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def open_whole(kernel: Path, accepts: Callable[[os.stat_result], bool] = lambda _: True) -> int:
    """A descriptor of the library. To load one that is not what was sealed, as after a crash of the node, can kill.

    Raises:
        OSError: it cannot be read, ``accepts`` does not accept it, or it is damaged.
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
    """True if the library is what was sealed."""
    try:
        os.close(open_whole(kernel))
    except OSError:
        return False
    return True


def is_own_file(path: Path) -> bool:
    """True if this is a regular file of this user that no other may write."""
    try:
        return is_own(os.lstat(path))
    except OSError:
        return False


def is_own(status: os.stat_result) -> bool:
    """As `is_own_file`, of an open file."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def check_private(folder: Path) -> None:
    """Raises OSError, which says what is wrong, unless the folder is this user's, and only this user can change it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(f"{folder} is not a folder of this user: remove it, or set XDG_CACHE_HOME")
    if stat.S_IMODE(status.st_mode) != 0o700:
        raise OSError(f"{folder} has mode {stat.S_IMODE(status.st_mode):o}; remove it, or empty it and set mode 700")
    _check_above(folder)


def _check_above(folder: Path) -> None:
    """Raises OSError if others can put another folder into the place of this one, as ssh checks it for its files.

    Whoever can change a folder can rename what is in it, unless it is sticky, as /tmp.
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
            return  # no other gets below


def _is_private_group(status: os.stat_result) -> bool:
    """Whether nobody but its owner is in a folder's group: with the umask of such a group, 002, it may write there.

    (Debian's user-group-modes.patch of OpenSSH)
    """
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and set(group.gr_mem) <= {owner.pw_name}


def _unmapped() -> int:
    """Whose the files of users are that a user namespace does not know, such as root's in Apptainer; -1: it knows all.

    (user_namespaces(7))
    """
    with contextlib.suppress(OSError, ValueError):
        inside, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
        if int(inside) or int(count) < 2**32 - 1:
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return -1


def make_private(folder: Path) -> None:
    """Create the folder for this user alone.

    Raises:
        OSError: it cannot be created, is another's, no folder, or one that others can use: what they may have put
            there is not trusted.
    """
    try:
        for path in (*reversed(folder.parents), folder):
            if not os.path.lexists(path):
                path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:  # it is no folder: said below
        pass
    except OSError as error:
        raise OSError(f"{folder} cannot be created ({error.strerror}): set XDG_CACHE_HOME to another folder") from None
    check_private(folder)
