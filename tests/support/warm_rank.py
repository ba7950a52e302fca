"""Programs of one rank that need not import torch, which takes two seconds of processor time.

Each is a process of its own, forked from one that has imported torch and otel-fr and done nothing with them. There,
otel-fr is activated as by `otel_fr.instrument()` after ``import torch``. Tests of the activation itself, of a process's
start and end, and of what is loaded before Python, start Python.
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
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import SCRIPTS


def _read(file: int, output: list[bytes]) -> None:
    with open(file, "rb") as opened:
        output.append(opened.read())


class WarmRanks:
    """Starts such programs, one at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def run(self, program: Path, env: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured output: it ends when nobody has the program's output open any more.

        Raises:
            subprocess.TimeoutExpired: the program was ended after so long.
        """
        outputs: list[list[bytes]] = [[], []]
        pipes = [os.pipe() for _ in outputs]
        socket.send_fds(self._channel, [json.dumps([str(program), env]).encode()], [write for _, write in pipes])
        threads = []
        for (read, write), output in zip(pipes, outputs, strict=True):
            os.close(write)
            threads.append(threading.Thread(target=_read, args=(read, output)))
            threads[-1].start()
        pid = int(self._channel.recv(100))
        self._channel.settimeout(seconds)
        try:
            status = int(self._channel.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._channel.settimeout(None)
            self._channel.recv(100)
            raise subprocess.TimeoutExpired(str(program), seconds) from None
        for thread in threads:
            thread.join(seconds)
        out, err = (b"".join(output).decode() for output in outputs)
        return subprocess.CompletedProcess([str(program)], status, out, err)


@contextlib.contextmanager
def warm_ranks() -> Iterator[WarmRanks]:
    """The process that has imported torch, as long as this is open."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(SCRIPTS / "warm_rank.py"), str(theirs.fileno())]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ours, subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()]):
        theirs.close()
        yield WarmRanks(ours)
        ours.close()
