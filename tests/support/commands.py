"""Commands that run to their end: ``otel-fr``, and Python programs of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import warm
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

BIN = Path(sys.executable).parent
OTEL_FR = (sys.executable, "-m", "otel_fr.cli")
"""The beginning of a command line of otel-fr."""


def script_environment(**values: str) -> dict[str, str]:
    """Return the environment for a program of tests/support/scripts. It finds the package ``tests`` from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **values}


def otel_fr(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``otel-fr``; ``env`` is added to the environment."""
    command = [*OTEL_FR, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.service(command, env={**os.environ, **env}, **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def python(code: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program given as text."""
    return run(sys.executable, "-c", code, *arguments, **env)


def run(*command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command; its exit status is for the caller to check."""
    return subprocess.run(
        [str(argument) for argument in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **env},
        check=False,
    )
