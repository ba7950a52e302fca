"""Sets up the simulated device: ``make simulated-device``. README.md beside this file says what it is.

It makes a virtual environment and the simulated libraries in ``build/simulated-device/torch-VERSION``, and links to the
libraries where torch looks for NVIDIA's. The environment has torch's CUDA build without NVIDIA's packages, and otel-fr
as an editable install. A step runs again only if its inputs have changed. The script needs the standard library, pip,
and a C++ compiler.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.simulated_device import stubs

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("src")
DEFAULT_TORCH = "2.14.1"
CACHE = ROOT / "build" / "test-cache"
"""``XDG_CACHE_HOME`` of tests: the capture engine's kernel for this torch is in it."""

# Packages that torch imports. Its own list also has NVIDIA's packages, 3 GB.
_WITH_TORCH = [
    "filelock",
    "typing-extensions",
    "sympy",
    "networkx",
    "jinja2",
    "MarkupSafe",
    "fsspec",
    "mpmath",
    "numpy",
]
_WITH_TORCH += ["setuptools"]
_FLAGS = ["-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", f"-I{SOURCES / 'headers'}"]
_STUB_FLAGS = ["-O1", "-fPIC", "-w", "-shared"]
# Library -> its sources, and what its functions return that are not simulated: cudaErrorNotSupported,
# CUDA_ERROR_NOT_SUPPORTED, ncclInvalidUsage.
_SIMULATED = {
    "libcudart": (["faults.cpp", "cuda/[!d]*.cpp"], 801),
    "libcuda": (["cuda/driver.cpp"], 801),
    "libnccl": (["nccl/*.cpp"], 5),
}


class InstallError(Exception):
    """The message says what is missing here."""


@dataclass(frozen=True)
class Place:
    """Where the simulated device of one torch is."""

    torch: str

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "simulated-device" / f"torch-{self.torch}"

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def libraries(self) -> Path:
        return self.folder / "lib"

    @property
    def packages(self) -> Path:
        """site-packages."""
        return next((self.folder / "venv" / "lib").glob("python3*/site-packages"))

    def is_ready(self) -> bool:
        """Whether it was set up from the present sources, except otel-fr's Python sources, which are read in place."""
        return all(self._is_made(step) for stage in STAGES for step in stage)

    def install(self) -> None:
        """Run the steps whose inputs have changed. Raises InstallError if one fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder.parent / ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for stage in STAGES:
                with ThreadPoolExecutor() as pool:
                    list(pool.map(self._make, [step for step in stage if not self._is_made(step)]))

    def _stamp(self, step: Step) -> Path:
        return self.folder / f".{step.name}"

    def _is_made(self, step: Step) -> bool:
        stamp = self._stamp(step)
        return stamp.is_file() and stamp.read_text() == step.digest()

    def _make(self, step: Step) -> None:
        begin = time.monotonic()
        print(f"simulated device: {step.name} ...", flush=True)
        self._stamp(step).unlink(missing_ok=True)
        digest = step.digest()
        step.make(self)
        self._stamp(step).write_text(digest)
        print(f"simulated device: {step.name}: {time.monotonic() - begin:.0f} s", flush=True)


@dataclass(frozen=True)
class Step:
    """One step of the set-up. ``digest``: of its inputs."""

    name: str
    digest: Callable[[], str]
    make: Callable[[Place], None]


# ---------------------------------------------------------------- torch


def _install_torch(place: Place) -> None:
    shutil.rmtree(place.folder)  # the rest of it was made with the former environment
    place.folder.mkdir()
    _run([sys.executable, "-m", "venv", place.folder / "venv"], "a virtual environment cannot be made")
    what = f"torch {place.torch} cannot be had here"
    # Compiling all modules of torch takes long, and jobs import few of them.
    _pip(place, ["install", "--no-compile", "--no-deps", f"torch=={place.torch}", *_WITH_TORCH], what)
    if not (place.packages / "torch" / "lib" / "libtorch_cuda.so").is_file():
        raise InstallError(f"{what} with CUDA: the package index has a CPU build")
    wheels = place.folder / "wheels"
    _pip(
        place,
        ["download", "--no-deps", "--dest", wheels, *_header_packages(place)],
        "NVIDIA's headers cannot be had here",
    )
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place.folder / "headers", [one for one in archive.namelist() if "/include/" in one])
    shutil.rmtree(wheels)


def _header_packages(place: Place) -> list[str]:
    """The packages with the headers of CUDA and NCCL that this torch was built with."""
    metadata = next(place.packages.glob("torch-*.dist-info")) / "METADATA"
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?:\[.*\])?==([\d.]+)", metadata.read_text(), re.MULTILINE)
    wanted = ("nvidia-nccl", "nvidia-cuda-runtime")
    found = [f"{name}=={version}" for name, version in required if name.startswith(wanted)]
    if toolkit := dict(required).get("cuda-toolkit"):  # CUDA 13: the packages have patch numbers of their own
        release = toolkit.rpartition(".")[0]
        found += [f"nvidia-cuda-runtime=={release}.*", f"nvidia-cuda-crt=={release}.*"]
    return found


# ---------------------------------------------------------------- the libraries


def _build_libraries(place: Place) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise InstallError("there is no C++ compiler")
    torch = place.packages / "torch" / "lib"
    needed = stubs.needed(torch)
    building, texts = place.folder / "building", place.folder / "generated"
    for folder in (building, texts):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = {
            library: [
                pool.submit(_compile, place, compiler, file) for glob in globs for file in sorted(SOURCES.glob(glob))
            ]
            for library, (globs, _) in _SIMULATED.items()
        }
        others = [library for name, library in needed.items() if name not in _SIMULATED]
        stubbed = [pool.submit(_link_stubs, compiler, building, texts, library) for library in others]
        for name, (_, otherwise) in _SIMULATED.items():
            made = [future.result() for future in objects[name]]
            _link(compiler, building, texts, needed[name], name, made, otherwise)
        for future in stubbed:
            future.result()
    shutil.rmtree(place.libraries, ignore_errors=True)
    building.rename(place.libraries)
    for folder in stubs.folders_searched(torch):
        resolved = Path(os.path.normpath(folder))
        resolved.parent.mkdir(parents=True, exist_ok=True)
        resolved.unlink(missing_ok=True)
        resolved.symlink_to(place.libraries)


def _compile(place: Place, compiler: str, file: Path) -> Path:
    """Return the object file. It is kept until the source file or a header changes."""
    name = f"{file.parent.name}-{file.stem}"
    objects = place.folder / "objects"
    made = objects / f"{name}-{_digest([file, *SOURCES.rglob('*.hpp')], *_FLAGS)}.o"
    if not made.is_file():
        objects.mkdir(exist_ok=True)
        for old in objects.glob(f"{name}-*.o"):
            old.unlink()
        includes = [f"-I{folder}" for folder in sorted((place.folder / "headers" / "nvidia").glob("*/include"))]
        part = made.with_suffix(".part")
        _run([compiler, *_FLAGS, *includes, "-c", file, "-o", part], f"{file.name} cannot be compiled")
        part.rename(made)
    return made


def _link(
    compiler: str, to: Path, texts: Path, library: stubs.Library, name: str, objects: Sequence[Path], otherwise: int
) -> None:
    """Link a simulated library. Libraries other than libcudart use its C++ functions."""
    rest = texts / f"{name}.rest.c"
    rest.write_text(stubs.source(library.names - stubs.defined(objects), otherwise))
    _run([compiler, "-x", "c", "-w", "-fPIC", "-c", rest, "-o", rest.with_suffix(".o")], f"{rest} cannot be compiled")
    options: list[str | Path] = [f"-Wl,-soname,{library.soname}", "-Wl,-rpath,$ORIGIN"]
    if version := next((version for version in library.symbols if version), None):
        script = texts / f"{name}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script,{script}")
    if name != "libcudart":
        options += list(to.glob("libcudart.so.*"))
    options += [*objects, rest.with_suffix(".o"), "-lpthread", "-ldl"]
    _run([compiler, "-shared", "-o", to / library.soname, *options], f"{library.soname} cannot be linked")


def _link_stubs(compiler: str, to: Path, texts: Path, library: stubs.Library) -> None:
    text, script = texts / f"{library.soname}.c", texts / f"{library.soname}.map"
    text.write_text(stubs.source(library.names))
    script.write_text(library.version_script())
    options: list[str | Path] = [*_STUB_FLAGS, f"-Wl,-soname,{library.soname}"]
    if script.read_text():
        options.append(f"-Wl,--version-script,{script}")
    _run([compiler, "-x", "c", *options, text, "-o", to / library.soname], f"{library.soname} cannot be linked")


# ---------------------------------------------------------------- otel-fr


def _install_project(place: Place) -> None:
    # torch is not named: pip would install NVIDIA's packages, which torch requires.
    _pip(place, ["install", "--editable", f"{ROOT}[collector]"], "otel-fr cannot be installed")


def _build_kernel(place: Place) -> None:
    failure = "the capture engine's kernel cannot be built"
    _run([place.python, "-m", "otel_fr.cli", "kernel", "build"], failure, XDG_CACHE_HOME=str(CACHE))


# ---------------------------------------------------------------- steps


def _digest(files: Iterable[Path], *more: str) -> str:
    found = hashlib.sha256("\0".join(more).encode())
    for file in sorted(files):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _sources() -> list[Path]:
    return [file for file in SOURCES.rglob("*") if file.is_file()]


# The steps of one stage run at the same time.
STAGES: Sequence[Sequence[Step]] = [
    [Step("torch", lambda: _digest([], *_WITH_TORCH), _install_torch)],
    [
        Step("libraries", lambda: _digest([*_sources(), Path(__file__), Path(stubs.__file__)]), _build_libraries),
        Step("otel-fr", lambda: _digest([ROOT / "pyproject.toml"]), _install_project),
    ],
    [Step("kernel", lambda: _digest((ROOT / "otel_fr" / "capture" / "native").glob("*.[chp]*")), _build_kernel)],
]


def _pip(place: Place, arguments: Sequence[str | Path], failure: str) -> None:
    _run([place.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], failure)


def _run(command: Sequence[str | Path], failure: str, **env: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    if done.returncode:
        raise InstallError(f"{failure}\n{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Sets up the simulated device.")
    parser.add_argument("--torch", default=DEFAULT_TORCH, metavar="VERSION", help="default: %(default)s")
    place = Place(parser.parse_args().torch)
    try:
        place.install()
    except InstallError as error:
        print(f"simulated device: {error}", file=sys.stderr)
        return 1
    print(f"simulated device: {place.folder} is ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
