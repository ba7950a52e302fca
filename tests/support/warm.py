"""Programs and jobs whose ranks need not import torch, which takes two seconds of processor time each.

Each rank is a process of its own, forked from one that has imported torch and done nothing with it. In it, otel-fr is
activated as after ``import torch``. torchrun is the real one, but for how it starts ranks; they have their own session,
process id, environment and exit status as ever. Tests of the activation itself, of a process's start and end, and of
what is loaded before Python, start Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import SCRIPTS

FRESH = os.environ.get("OTEL_FR_TEST_START") == "fresh"
"""All ranks start Python, as users' ranks do: `make test-all`."""

TORCHRUN = (sys.executable, str(SCRIPTS / "warm.py"), "torchrun")
"""torchrun with such ranks: the beginning of its command."""


def _read(file: int, output: list[bytes]) -> None:
    with open(file, "rb") as opened:
        output.append(opened.read())


class WarmRanks:
    """Starts programs of one rank, one at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def _ask(self, request: object, files: list[int]) -> str:
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        return self._channel.recv(100).decode()

    def run(self, program: Path, env: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured output: it ends when nobody has the program's output open any more.

        Raises:
            subprocess.TimeoutExpired: the program was ended after so long.
        """
        outputs: list[list[bytes]] = [[], []]
        pipes = [os.pipe() for _ in outputs]
        command = [sys.executable, str(program)]
        pid = int(self._ask([command, env, str(program.parent)], [write for _, write in pipes]))
        threads = []
        for (read, write), output in zip(pipes, outputs, strict=True):
            os.close(write)
            threads.append(threading.Thread(target=_read, args=(read, output)))
            threads[-1].start()
        end = time.monotonic() + seconds
        while (status := self._ask(pid, [])) == "runs":
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, seconds)
            time.sleep(0.01)
        for thread in threads:
            thread.join(seconds)
        out, err = (b"".join(output).decode() for output in outputs)
        return subprocess.CompletedProcess(command, int(status), out, err)


@contextlib.contextmanager
def warm_ranks() -> Iterator[WarmRanks]:
    """The process that has imported torch, as long as this is open."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(SCRIPTS / "warm.py"), "serve", str(theirs.fileno())]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ours, subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()]):
        theirs.close()
        yield WarmRanks(ours)
        ours.close()
