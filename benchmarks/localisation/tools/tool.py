"""What a tool's adapter is: how it is switched on in a job, and how its answer is read afterwards."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.localisation.answers import Answer
from benchmarks.localisation.running import Finished
from tests.support import warm

SECONDS = 120.0
"""For a command that reads files."""


class Tool(Protocol):
    """Attributes:
    name: in tables.
    own_run_on: in these settings the job runs once more for it alone, for it changes what the job does; in others it is
        not asked. Empty: it shares a run with others, in every setting.
    """

    name: str
    own_run_on: tuple[str, ...]

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """What the job's environment needs. What has to run beside the job is left to ``stack``."""
        ...

    def answer(self, job: Finished) -> Answer:
        """What it says of the job, which is over. Without ``Answer.at``, it said so just now."""
        ...


class OnFiles:
    """A tool that reads what the job has left, and changes nothing of it."""

    own_run_on: tuple[str, ...] = ()

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """Nothing."""
        return {}


def module(python: Path, *arguments: object, imports_torch: bool = False, **env: str) -> tuple[int, str]:
    """Run a module of Python; its exit status, and what it printed. ``env``: all of its environment but PATH."""
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
    """Of an error."""
    return (text.strip().splitlines() or [""])[-1]
