"""Imports torch, then starts programs in forks of this process, which need not import it: tests/support/warm.py.

``warm.py serve FD`` runs the programs that are asked for on that socket, one at a time; ``warm.py torchrun ...`` is
torchrun, whose ranks are such forks.
"""

import importlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any

from otel_fr._activate import torch_backend_loaded


def import_first(*modules: str) -> None:
    """What the programs need not import; without otel-fr's settings, so that it is not active here."""
    settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OTEL_")}
    for module in ("torch.distributed", *modules):
        importlib.import_module(module)
    os.environ.update(settings)


class Forks:
    """The side of a socket that has programs started and learns how they end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def start(self, command: list[str], environment: dict[str, str], files: list[int]) -> int:
        """The process's id. ``files``: its standard output and error."""
        with self._lock:
            socket.send_fds(self._channel, [json.dumps([command, environment, os.getcwd()]).encode()], files)
            return int(self._channel.recv(100))

    def status(self, pid: int) -> int | None:
        """As `subprocess.Popen.poll`."""
        with self._lock:
            self._channel.send(json.dumps(pid).encode())
            answer = self._channel.recv(100).decode()
        return int(answer) if answer != "runs" else None


def wait_for_program(channel: socket.socket) -> list[str]:
    """Returns the command of each program that is asked for, in a process with its environment, folder and output."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, 1 << 20, 2)
        if not request:
            os._exit(0)  # as if this process had never been: what was imported has nothing to say
        asked = json.loads(request)
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode() if pid else b"runs")
        elif os.fork() == 0:
            os.setsid()
            channel.send(str(os.getpid()).encode())
            channel.close()
            command, environment, folder = asked
            for standard, file in zip((1, 2), files, strict=True):
                os.dup2(file, standard)
                os.close(file)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            return list(command)
        for file in files:
            os.close(file)


def become(command: list[str]) -> None:
    """Runs ``[python, [-u], program, arguments...]`` as Python does, but for what is imported already."""
    program, *arguments = command[2:] if command[1] == "-u" else command[1:]
    if command[1] == "-u":
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    torch_backend_loaded()
    main = types.ModuleType("__main__")
    main.__file__ = program
    sys.modules["__main__"] = main
    with open(program, encoding="utf-8") as source:
        code = compile(source.read(), program, "exec")
    exec(code, main.__dict__)


class Rank:
    """What torchrun uses of `subprocess.Popen`."""

    def __init__(self, forks: Forks, command: list[str], environment: dict[str, str], files: list[int]) -> None:
        self._forks = forks
        self.args = command
        self.pid = forks.start(command, environment, files)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return status


def torchrun() -> None:
    """torchrun, in whose place another process starts the ranks, forked before torchrun has threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        os.setsid()
        ours.close()
        become(wait_for_program(theirs))
        return
    theirs.close()
    torch_backend_loaded()
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.run import main

    forks = Forks(ours)

    def popen(self: Any, args: tuple[str, ...], env: dict[str, str]) -> Rank:
        files = [file.fileno() if file else standard for standard, file in ((1, self._stdout), (2, self._stderr))]
        return Rank(forks, list(args), env, files)

    subprocess_handler.SubprocessHandler._popen = popen
    sys.argv = ["torchrun", *sys.argv[2:]]
    main()


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        import_first()
        torchrun()
    else:
        import_first("torch.testing._internal.distributed.fake_pg", "otel_fr.capture.session", "otel_fr.ring")
        become(wait_for_program(socket.socket(fileno=int(sys.argv[2]))))
