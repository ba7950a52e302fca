"""Compiles a kernel for one torch.

    python -m otel_fr.capture.native.build [--folder FOLDER] [--torch FOLDER | --wheel FILE]

Without a folder, the kernel goes to this user's cache, where ranks find it at their next start. Needs a C++ compiler
and torch's headers, which its wheel has. torch itself is not imported.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from otel_fr.capture.native import store

_COMPILERS: Final = ("c++", "g++", "clang++")
NO_COMPILER: Final = f"no C++ compiler was found (CXX, {', '.join(_COMPILERS)})"
_OPTIONS: Final = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
TIMEOUT: Final = 900
"""Seconds; it takes 10 to 30 of a core's time."""
_VERSION: Final = re.compile(r"""^__version__ = ['"]([^'"]+)['"]""", re.MULTILINE)
_IN_WHEEL: Final = (
    "torch/include/",
    "torch/share/cmake/Torch/",
    "torch/version.py",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
)
_ABI: Final = re.compile(r"_GLIBCXX_USE_CXX11_ABI=([01])")
_UNFINISHED: Final = ".building-"
"""Begins the names of kernels that are being compiled."""
_MESSAGE: Final = 4000
"""Characters of the compiler's output that are kept."""


class BuildError(Exception):
    """The kernel could not be compiled; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A torch to compile for.

    Attributes:
        root: its package folder.
        version: without what follows "+".
        new_abi: compiled with the C++11 ABI of the C++ library.
    """

    root: Path
    version: str
    new_abi: bool

    @classmethod
    def running(cls, torch: ModuleType) -> Target:
        """The torch of this process."""
        root = Path(str(torch.__file__)).parent
        return cls(root, store.base_version(torch), bool(torch._C._GLIBCXX_USE_CXX11_ABI))

    @classmethod
    def installed(cls, root: Path | None = None) -> Target:
        """A torch in a package folder; None: the one that this Python would import.

        Raises:
            BuildError: there is none.
        """
        if root is None:
            spec = importlib.util.find_spec("torch")
            if spec is None or not spec.origin:
                raise BuildError("torch is not installed here")
            root = Path(spec.origin).parent
        try:
            version = _VERSION.search((root / "version.py").read_text())
            abi = _ABI.search((root / "share" / "cmake" / "Torch" / "TorchConfig.cmake").read_text())
        except OSError as error:
            raise BuildError(f"{root} has no torch: {error}") from None
        if version is None:
            raise BuildError(f"{root / 'version.py'} does not name torch's version")
        return cls(root, version[1].split("+")[0], abi is None or abi[1] == "1")

    @property
    def file_name(self) -> str:
        """See `store.file_name`."""
        return store.file_name(self.version, self.new_abi)


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack of a wheel of torch what a kernel is compiled with. Returns its package folder.

    Raises:
        BuildError: it is no wheel of torch.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(_IN_WHEEL):
                    archive.extract(name, folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise BuildError(f"{wheel} cannot be unpacked: {error}") from None
    return folder / "torch"


def find_compiler(env: Mapping[str, str] = os.environ) -> list[str] | None:
    """The command of the C++ compiler: CXX, or the first that is found; None: there is none."""
    own = shlex.split(env.get("CXX", ""))
    if own and shutil.which(own[0]):
        return own
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), None)


def command(target: Target, compiler: list[str], output: Path) -> list[str]:
    """What compiles the kernel."""
    include = target.root / "include"
    libraries = target.root / "lib"
    return [
        *compiler,
        *_OPTIONS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(target.new_abi)}",
        str(store.FOLDER / "kernel.cpp"),
        "-isystem",
        str(include),
        "-isystem",
        str(include / "torch" / "csrc" / "api" / "include"),
        f"-L{libraries}",
        "-ltorch_cpu",
        "-lc10",
        "-o",
        str(output),
    ]


def build(target: Target, folder: Path) -> Path:
    """Compile the kernel into ``folder``, unless it is there. Returns its path.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: the folder cannot be written.
    """
    path = folder / target.file_name
    if store.is_own_file(path) and store.is_whole(path):
        return path
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(NO_COMPILER)
    # Moved into place when it is whole, so that no process loads half a library.
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED, suffix=".so", dir=folder)
    os.close(handle)
    unfinished = Path(name)
    try:
        status, said = _run(command(target, compiler, unfinished))
        if status:
            raise BuildError(f"{' '.join(compiler)} failed: {said[-_MESSAGE:].strip()}")
        store.seal(unfinished)
        unfinished.chmod(0o700)
        unfinished.replace(path)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{' '.join(compiler)} did not end within {TIMEOUT} s") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _run(arguments: list[str]) -> tuple[int, str]:
    """Exit status of a compiler, and what it said. Raises TimeoutExpired; no process of it is left then.

    It has a process group of its own, for GCC is several programs.
    """
    with subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as compiler:
        try:
            _, said = compiler.communicate(timeout=TIMEOUT)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(compiler.pid, signal.SIGKILL)
            raise
    return compiler.returncode, said


def _remove_unfinished(folder: Path) -> None:
    """What compilations left that were killed. For their only successor."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_builder(folder: Path) -> Iterator[bool]:
    """True in one process at a time of those that use the folder; the others do not wait."""
    with open(folder / ".lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def give_way() -> None:
    """Let every other process of the machine go first, and be the first to end where memory ends."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the kernel goes (default: this user's cache)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--torch", type=Path, help="torch's package folder (default: that of the torch installed here)")
    which.add_argument("--wheel", type=Path, help="a wheel of torch, of any Python")
    parser.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.background:
        give_way()
    with contextlib.ExitStack() as stack:
        return _build(options, stack)


def _build(options: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    try:
        root = options.torch
        if options.wheel is not None:
            root = unpack(options.wheel, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        target = Target.installed(root)
        folder = options.folder or store.cache_folder()
        if options.folder is None:
            store.make_private(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        with only_builder(folder) as alone:
            if not alone:
                print("another process compiles it", file=sys.stderr)
                return 0
            _remove_unfinished(folder)
            try:
                print(build(target, folder))
            except BuildError as error:
                store.note_failure(folder / target.file_name, str(error))
                raise
    except (BuildError, OSError) as error:
        print(f"otel-fr: no kernel was compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
