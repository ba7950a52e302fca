"""What a tool's adapter is: how it is switched on in a job, and how its answer is read afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from benchmarks.localisation.answers import Answer
from benchmarks.localisation.running import Finished

SECONDS = 120.0
"""For a command that reads files."""


class Tool(Protocol):
    """Attributes:
    name: in tables. own_run: it changes what the job does, so the job runs once more for it alone.
    """

    name: str
    own_run: bool

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """What the job's environment needs. What has to run beside the job is left to ``stack``."""
        ...

    def answer(self, job: Finished) -> Answer:
        """What it says of the job, which is over. Without ``Answer.at``, it said so just now."""
        ...


class OnFiles:
    """A tool that reads what the job has left, and changes nothing of it."""

    own_run = False

    def prepare(self, folder: Path, stack: ExitStack) -> dict[str, str]:
        """Nothing."""
        return {}


def command(*arguments: object, **env: str) -> tuple[int, str]:
    """Run a command; its exit status, and what it printed. ``env``: all of its environment but PATH."""
    words: Sequence[str] = [str(argument) for argument in arguments]
    given = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env}
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


def last_line(text: str) -> str:
    """Of an error."""
    return (text.strip().splitlines() or [""])[-1]
