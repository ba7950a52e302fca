"""The trace analyzer of NVIDIA's Resiliency Extension, on PyTorch's files.

Its newest wheel is for another Python and another libc, and requires CUDA packages. The analyzer is plain Python and
needs none of them. So only the wheel is unpacked, into ``build/localisation``.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

from benchmarks.localisation.answers import Answer, named
from benchmarks.localisation.running import PREFIX, Finished
from benchmarks.localisation.tools.tool import OnFiles, last_line, module
from tests.support.paths import ROOT

VERSION = "0.7.0"
FOLDER = ROOT / "build" / "localisation" / f"nvrx-{VERSION}"
_MODULE = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
_PIP = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
_PIP += ["--platform", "manylinux_2_39_x86_64"]


class Nvrx(OnFiles):
    """``fr_attribution``: it names the ranks that are missing in calls that other ranks have scheduled."""

    name = "NVIDIA's analyzer"

    def answer(self, job: Finished) -> Answer:
        if not install():
            return Answer("not run", text="it could not be installed")
        if job.newest("torch") is None:
            return Answer("silent", text="no file")
        options = ["--fr-path", job.folder / "torch", "-p", f"{PREFIX}*", "--emit-stdout"]
        return from_output(*module(Path(sys.executable), _MODULE, *options, PYTHONPATH=str(FOLDER)))


def from_output(status: int, output: str) -> Answer:
    """Return the answer in the last column of its table."""
    if status:
        return Answer("crash", text=last_line(output))
    rows, is_table = [], False
    for line in output.splitlines():
        is_table = is_table or (line.startswith("PGID") and "Missing Ranks" in line)
        if is_table and line.count("|") >= 5 and not line.startswith("PGID"):
            rows.append(line)
    cells = [cell.strip() for row in rows for cell in row.rsplit("|", 1)[-1].split(",")]
    return named({int(cell) for cell in cells if cell.isdigit()}, "; ".join(rows)[:300])


@functools.cache
def install() -> bool:
    """Install the analyzer if needed. Returns False if that is not possible."""
    if not Path(FOLDER, *_MODULE.split(".")[:1]).is_dir():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *_PIP,
            "--target",
            str(FOLDER),
            f"nvidia-resiliency-ext=={VERSION}",
        ]
        return subprocess.run(pip, check=False).returncode == 0
    return True
