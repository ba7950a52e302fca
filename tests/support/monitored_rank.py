"""Starts and drives `scripts/rank_with_monitor.py`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.commands import script_environment
from tests.support.paths import SCRIPTS
from tests.support.waiting import PATIENCE

PLAYER = SCRIPTS / "rank_with_monitor.py"


@dataclass
class Played:
    """A rank played by a real process with a real monitor."""

    process: subprocess.Popen[str]
    monitor: int
    ring: Path
    folder: Path

    def send_command(self, do: str, **values: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.process.stdin.flush()

    def release(self) -> None:
        """Let the rank release the GIL that the command ``hold_gil`` took."""
        assert self.process.stdin is not None
        self.process.stdin.write("!")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, do: str, **values: Any) -> Any:
        self.send_command(do, **values)
        return self.read()["done"]

    def monitor_alive(self) -> bool:
        try:
            return Path(f"/proc/{self.monitor}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def monitor_end(self) -> float:
        """Wait for the monitor's end, and return the seconds of the wait."""
        start = time.monotonic()
        while self.monitor_alive():
            if time.monotonic() - start > PATIENCE:
                raise AssertionError(f"the monitor has not ended within {PATIENCE} s")
            time.sleep(0.01)
        return time.monotonic() - start

    def end(self, do: str, **values: Any) -> int:
        """Let the rank end in the way of a command, and return its exit status."""
        self.send_command(do, **values)
        return self.process.wait(PATIENCE)

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text()


def environment(**values: str) -> dict[str, str]:
    return script_environment(**{"OTEL_FR_STALL_SECONDS": "1", **values})


@contextlib.contextmanager
def play(folder: Path, env: Mapping[str, str]) -> Iterator[Played]:
    """Run a rank during the block. ``env``: added to `environment`, with ``folder/dumps`` as ``OTEL_FR_DUMP_DIR``."""
    folder.mkdir(parents=True, exist_ok=True)
    values = environment(**{"OTEL_FR_DUMP_DIR": str(folder / "dumps"), **env})
    with (folder / "stderr.txt").open("w") as stderr:
        command = [sys.executable, str(PLAYER), str(folder)]
        process = warm.service(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=values)
    assert process.stdout is not None
    played: Played | None = None
    try:
        ready = json.loads(process.stdout.readline())
        played = Played(process, ready["monitor"], Path(ready["ring"]), folder)
        yield played
    finally:
        process.kill()
        process.wait()
        if played is not None:
            with contextlib.suppress(AssertionError):
                played.monitor_end()
            if played.monitor_alive():
                os.kill(played.monitor, 9)
                raise AssertionError("the monitor did not end on its own")
