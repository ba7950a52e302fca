"""``otel-fr kernel build``: compiles the compiled engine's kernel for one torch, which is not imported."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_fr.capture.native import store

_COMPILERS: Final = ("c++", "g++", "clang++")
_NO_COMPILER: Final = f"no C++ compiler was found (CXX, {', '.join(_COMPILERS)}); install one, or set CXX to its path"
_OPTIONS: Final = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_VERSION: Final = re.compile(r"""^__version__ = ['"]([^'"]+)['"]""", re.MULTILINE)
_IN_WHEEL: Final = (
    "torch/include/",
    "torch/share/cmake/Torch/",
    "torch/version.py",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
)
_ABI: Final = re.compile(r"_GLIBCXX_USE_CXX11_ABI=([01])")
_MESSAGE: Final = 4000
"""Characters of the compiler's output that are kept."""


class BuildError(Exception):
    """The kernel could not be compiled; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A torch to compile for.

    Attributes:
        root: the package folder of torch.
        version: torch's version up to the "+".
        new_abi: True if torch was compiled with the C++11 ABI of the C++ library.
    """

    root: Path
    version: str
    new_abi: bool

    @classmethod
    def installed(cls, root: Path | None = None) -> Target:
        """Find torch in a package folder, or the torch that this Python would import (None).

        Raises:
            BuildError: there is no torch.
        """
        if root is None:
            spec = importlib.util.find_spec("torch")
            if spec is None or not spec.origin:
                raise BuildError("torch is not installed here; install it, or name one with --torch or --wheel")
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
    """Unpack the parts of torch's wheel that are needed to compile a kernel. Return torch's package folder.

    Raises:
        BuildError: the file cannot be unpacked.
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
    """Return the command of the C++ compiler: CXX, else the first of `_COMPILERS` that exists, else None."""
    own = shlex.split(env.get("CXX", ""))
    if own and shutil.which(own[0]):
        return own
    return next(([found] for name in _COMPILERS if (found := shutil.which(name))), None)


def command(target: Target, compiler: list[str], output: Path) -> list[str]:
    """Return the command that compiles the kernel."""
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
    """Compile the kernel into ``folder``, unless it already exists. Return its path.

    Raises:
        BuildError: there is no compiler, or the compiler fails.
        OSError: the folder cannot be written.
    """
    path = folder / target.file_name
    if store.is_own_file(path) and store.is_whole(path):
        return path
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(_NO_COMPILER)
    # Moved into place once complete, so that no process loads half a library.
    handle, name = tempfile.mkstemp(prefix=".building-", suffix=".so", dir=folder)
    os.close(handle)
    unfinished = Path(name)
    try:
        arguments = command(target, compiler, unfinished)
        done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            said = done.stderr[-_MESSAGE:].strip()
            raise BuildError(f"{' '.join(compiler)} failed (it must support C++20; CXX names another): {said}")
        store.seal(unfinished)
        unfinished.chmod(0o700)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    text = "Compile the kernel for one torch, unless it exists, and print its path. Needs a C++ compiler."
    action = actions.add_parser("build", help="compile it, unless it exists", description=text)
    action.add_argument("--folder", type=Path, help="output folder (default: the cache that ranks search)")
    which = action.add_mutually_exclusive_group()
    which.add_argument("--torch", metavar="FOLDER", type=Path, help="torch's package (default: the one installed here)")
    which.add_argument("--wheel", metavar="FILE", type=Path, help="a wheel of torch, of any Python")
    parser.epilog = action.epilog = "Exit status: 0 the kernel exists; 1 it could not be compiled; 2 usage error."


def run(options: argparse.Namespace) -> int:
    """Compile the kernel, and print its path."""
    try:
        with contextlib.ExitStack() as stack:
            root = options.torch
            if options.wheel is not None:
                root = unpack(options.wheel, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            target = Target.installed(root)
            folder = options.folder
            if folder is None:
                folder = store.cache_folder()
                store.make_private(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)
            print(build(target, folder))
    except (BuildError, OSError) as error:
        print(f"otel-fr kernel build: no kernel was compiled: {error}", file=sys.stderr)
        return 1
    return 0
