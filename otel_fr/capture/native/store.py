"""Where compiled kernels are: those that came with otel-fr, and those that were compiled on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
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
        raise OSError("there is no folder for it: set HOME or XDG_CACHE_HOME") from None


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


def candidates(torch: ModuleType, env: Mapping[str, str] = os.environ) -> list[Path]:
    """The libraries for the running torch that may be loaded, best first."""
    name = running_file_name(torch)
    found = [SHIPPED / name]
    with contextlib.suppress(OSError):
        folder = cache_folder(env)
        if is_private(folder) and is_own_file(folder / name):
            found.append(folder / name)
    return [path for path in found if is_whole(path)]


def why_missing(torch: ModuleType, env: Mapping[str, str] = os.environ) -> str:
    """Why the cache has no kernel for the running torch that may be loaded, for people."""
    name = running_file_name(torch)
    try:
        folder = cache_folder(env)
        if not os.path.lexists(folder):
            return "none has been compiled on this machine"
        check_private(folder)
    except OSError as error:
        return str(error)
    kernel = folder / name
    if not os.path.lexists(kernel):
        return f"{folder} has none"
    if not is_own_file(kernel):
        return f"{kernel} is not a file of this user alone"
    return f"{kernel} is damaged"


def seal(kernel: Path) -> None:
    """Append a checksum to a library that was just compiled, and have all of it on the disk. Raises OSError."""
    with open(kernel, "r+b") as file:
        content = file.read()
        file.write(_SEAL + hashlib.sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())


def is_whole(kernel: Path) -> bool:
    """True if the library is what was sealed. To load one that is not, as after a crash of the node, can kill."""
    try:
        content = kernel.read_bytes()
    except OSError:
        return False
    end = len(content) - len(_SEAL) - hashlib.sha256().digest_size
    return end > 0 and content[end:] == _SEAL + hashlib.sha256(content[:end]).digest()


def is_private(folder: Path) -> bool:
    """True if the folder is this user's, and only this user can change what is in it."""
    try:
        check_private(folder)
    except OSError:
        return False
    return True


def is_own_file(path: Path) -> bool:
    """True if this is a regular file of this user that no other may write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def check_private(folder: Path) -> None:
    """Raises OSError, which says what is wrong, unless the folder is this user's, and only this user can change it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(f"{folder} is not a folder of this user: remove it, or set XDG_CACHE_HOME")
    if stat.S_IMODE(status.st_mode) != 0o700:
        raise OSError(f"{folder} has mode {stat.S_IMODE(status.st_mode):o}; remove it, or empty it and set mode 700")


def make_private(folder: Path) -> None:
    """Create the folder for this user alone.

    Raises:
        OSError: it cannot be created, is another's, no folder, or one that others can use: what they may have put
            there is not trusted.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:  # it is no folder: said below
        pass
    except OSError as error:
        raise OSError(f"{folder} cannot be created ({error.strerror}): set XDG_CACHE_HOME to another folder") from None
    check_private(folder)
