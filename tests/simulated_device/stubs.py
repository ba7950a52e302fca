"""Finds what torch's libraries need from CUDA's, and writes C sources of it: functions that do nothing.

Symbols and their versions are read from torch's own libraries, so that this works for each version of torch.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LIBRARY_OF_PREFIX = {
    # The first prefix (a pattern) that matches counts. An upper-case letter, "_" or a digit must follow it.
    "cuFile": "libcufile",
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "cusolver": "libcusolver",
    "curand": "libcurand",
    "cufft": "libcufft",
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cupti": "libcupti",
    "cudnn": "libcudnn",
    "cudss": "libcudss",
    "nvshmem[a-z]*": "libnvshmem_host",
    "nvrtc": "libnvrtc",
    "nvJitLink": "libnvJitLink",
    "nvtx": "libnvToolsExt",
    "nccl": "libnccl",
    "__cuda": "libcudart",
    "cuda": "libcudart",
    "cu": "libcuda",
}
_NVIDIA = re.compile(r"NEEDED.*\[(lib(?:cu|nccl|nv)[^\]]*)\]")


@dataclass
class Library:
    """A library that torch needs. ``symbols``: version -> names; "": no version."""

    soname: str
    symbols: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def names(self) -> set[str]:
        return set().union(*self.symbols.values())

    def version_script(self) -> str:
        """The version script for the linker. "": no symbol has a version. Other symbols can be used as well."""
        nodes = [
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
            for version, names in sorted(self.symbols.items())
            if version
        ]
        return "".join(nodes)


def needed(folder: Path) -> dict[str, Library]:
    """Return what the libraries in a folder need: library name without ``.so`` -> `Library`."""
    files = sorted(folder.glob("*.so*"))
    dynamic = "".join(_output("readelf", "-d", file) for file in files)
    libraries = {name.partition(".so")[0]: Library(name) for name in sorted(set(_NVIDIA.findall(dynamic)))}
    for file in files:
        for line in _output("nm", "-D", "--undefined-only", file).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            name = _library_of(symbol)
            if name is not None:
                library = libraries.setdefault(name, Library(f"{name}.so.1"))
                library.symbols[version.strip("@")].add(symbol)
    return libraries


def folders_searched(folder: Path) -> set[Path]:
    """Where the libraries of the folder look for NVIDIA's: their DT_RPATH comes before LD_LIBRARY_PATH."""
    found: set[Path] = set()
    for file in folder.glob("*.so"):
        for paths in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", _output("readelf", "-d", file)):
            found |= {folder / path.removeprefix("$ORIGIN/") for path in paths.split(":") if "/nvidia/" in path}
    return found


def defined(objects: Iterable[Path]) -> set[str]:
    """The functions in object files, except C++ functions."""
    listed = _output("nm", "--defined-only", *objects)
    return set(re.findall(r"^\w+ T ([^_\s]\S*|__cuda\S*)$", listed, re.MULTILINE))


def source(names: Iterable[str], otherwise: int | None = None) -> str:
    """C with these functions. ``otherwise``: what all of them return. None: a value with which torch continues."""
    if otherwise is not None:
        return "".join(f"int {name}(void) {{ return {otherwise}; }}\n" for name in sorted(names))
    return "".join(f"{_function(name)}\n" for name in sorted(names)) or "int nothing_is_used_of_this_library;\n"


_SPECIAL: Mapping[str, str] = {
    # Without a result, torch would raise an error.
    "cublasLtMatmulAlgoGetHeuristic": "int {name}(void *a, void *b, void *c, void *d, void *e, void *f, void *g,"
    " int most, char *found, int *count) {{ for (int i = 0; i < 96; i++) found[i] = 0; *count = 1; return 0; }}",
    "cudnnGetVersion": "unsigned long {name}(void) {{ return 92400; }}",
    "cudnnGetCudartVersion": "unsigned long {name}(void) {{ return 13000; }}",
    "nvrtcVersion": "int {name}(int *major, int *minor) {{ *major = 13; *minor = 0; return 0; }}",
    "cuptiGetVersion": "int {name}(unsigned *version) {{ *version = 130000; return 0; }}",
    "cuptiSubscribe": "int {name}(void **handle) {{ *handle = 0; return 1; }}",  # another profiler has subscribed
}


def _function(name: str) -> str:
    if name in _SPECIAL:
        return _SPECIAL[name].format(name=name)
    if re.search(r"Get(Error|Status)(String|Name)", name):
        return f'const char *{name}(void) {{ return "simulated"; }}'
    if "Create" in name and not name.startswith("cupti"):  # torch uses the created object
        return f"int {name}(void **made) {{ static char it[4096]; if (made) *made = it; return 0; }}"
    if name.startswith("cudnn") and ("Get" in name or "Find" in name):
        return f"int {name}(void) {{ return 3000; }}"  # CUDNN_STATUS_NOT_SUPPORTED
    return f"long {name}(void) {{ return 0; }}"


def _library_of(symbol: str) -> str | None:
    if symbol.startswith("_Z"):
        return None
    found = (library for prefix, library in _LIBRARY_OF_PREFIX.items() if re.match(f"{prefix}[A-Z0-9_]", symbol))
    return next(found, None)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
