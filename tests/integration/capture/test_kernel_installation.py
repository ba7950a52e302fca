"""Repeated installation of kernels: a program may end and restart its recording any number of times."""

from __future__ import annotations

import subprocess
import sys

from tests.support import engines
from tests.support.waiting import PATIENCE

PROGRAM = """
import sys
from pathlib import Path

import torch

from otel_fr.capture.dispatcher import operators_of
from otel_fr.capture.native import _ringwriter, store
from otel_fr.capture.native.library import KernelLibrary

kernel = Path(sys.argv[1])
for _ in range(2):  # it is loaded once
    library = KernelLibrary(kernel, store.open_whole(kernel), str(torch.__version__))
operators = [operator for operator, _ in operators_of(torch)]


def resident():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def install(times):
    for _ in range(times):
        library.install(_ringwriter.API, operators)
        library.remove()


install(300)
before = resident()
install(1500)
print(resident() - before)
"""


def test_kernels_that_are_installed_again_take_no_more_memory() -> None:
    """A kernel is kept, because a thread may be in it, and is used again. Otherwise each installation takes 3.5 MiB."""
    command = [sys.executable, "-c", PROGRAM, str(engines.kernel())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert int(done.stdout) < 2048, "KiB"
