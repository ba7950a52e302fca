"""How otel-fr's own processes are started, with which command line and environment, and how they end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# -c is used in place of -m or -I: a file of the job that is named like a module of the standard library must not be
# imported, but a PYTHONPATH that the job needs to find its packages must still count. Sockets that the job's C++ left
# inheritable are closed first: if the monitor held them, the peers of a dead rank would not notice its death.
_MAIN: Final = """
import os, sys
given = {given}
for name in os.listdir("/proc/self/fd"):
    if int(name) > given:
        try:
            os.close(int(name))
        except OSError:
            pass
sys.path[:] = [path for path in sys.path if path]
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""

_PR_SET_PDEATHSIG: Final = 1
"""An option of prctl(2)."""


def end_with(parent: int) -> bool:
    """Have the kernel kill this process when the thread that started it ends. False: the parent has already ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def python_command(module: str, given: str = "2") -> list[str]:
    """Return the command that runs a module of otel-fr in an interpreter of its own.

    Args:
        given: Python expression of the highest file descriptor that the process inherits.
    """
    return [sys.executable, "-c", _MAIN.format(module=module, given=given)]


def helper_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that serves a rank, from the rank's own."""
    env = dict(base)
    # The process must not record itself, be instrumented, or load torch plugins.
    env["OTEL_FR_ENABLED"] = "0"
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    env["OMP_NUM_THREADS"] = "1"
    here = str(Path(__file__).resolve().parent.parent)
    # opentelemetry-instrument's folder (its sitecustomize) would instrument the monitor too.
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and not p.endswith("auto_instrumentation")]
    env["PYTHONPATH"] = os.pathsep.join([*paths, here])
    return env
