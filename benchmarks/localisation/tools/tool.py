"""The interface of a tool's adapter: it switches the tool on in a job, and reads its answer afterwards."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.localisation.answers import Answer
from benchmarks.localisation.running import Finished
from tests.support import warm

SECONDS = 120.0
"""Limit for a command that reads files."""


class Tool(Protocol):
    """Attributes:
    name: in tables.
    own_run_on: settings in which the job runs once more only for this tool, because the tool changes the job. In other
        settings the tool is not asked. Empty: it shares a run with others in every setting.
    """

    name: str
    own_run_on: tuple[str, ...]

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """Return variables for the job's environment. Programs that run beside the job are put on ``stack``."""
        ...

    def answer(self, job: Finished) -> Answer:
        """Return the tool's answer about a finished job. Without ``Answer.at``, the tool has only now given it."""
        ...


class OnFiles:
    """A tool that reads the job's files, and does not change the job."""

    own_run_on: tuple[str, ...] = ()

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """Return no variables."""
        return {}


def module(python: Path, *arguments: object, imports_torch: bool = False, **env: str) -> tuple[int, str]:
    """Run a Python module. Returns its exit status and output. ``env``: its complete environment except PATH."""
    command = [str(python), "-m", *map(str, arguments)]
    options: dict[str, Any] = {"env": {"PATH": "/usr/bin:/bin", **env}, "stdout": subprocess.PIPE}
    options["stderr"] = subprocess.STDOUT
    with warm.rank(command, **options) if imports_torch else subprocess.Popen(command, text=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    return process.returncode, output


def last_line(text: str) -> str:
    """Return the last line of an error."""
    return (text.strip().splitlines() or [""])[-1]
