"""Programs that start quickly, because they need not import modules: torch takes two CPU seconds, a monitor's one.

Each program is a process forked from a server that has imported these modules and done nothing with them
(`scripts/warm.py`). It has its own session, process id, environment and exit status. A rank is activated as after
``import torch``, and its monitor is a fork, too. torchrun is the real torchrun, except that it forks the ranks.

Tests start Python itself if they are about the activation, the start of a monitor, a process's memory, or libraries
that are loaded before Python.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FRESH = os.environ.get("OTEL_FR_TEST_START") == "fresh"
"""True: all programs start Python, like users' programs, as in `make test-all`."""

SERVER = Path(__file__).parent / "scripts" / "warm.py"
SERVICES = "services"
"""Name of the server of monitors and collectors, which never import torch. A server of ranks has Python's path as its
name."""
_POLL_SECONDS = 0.01


FOLDER = "OTEL_FR_TEST_SERVERS"
"""The variable with the folder of the servers' sockets. All workers of pytest share the servers."""
started: list[subprocess.Popen[bytes]] = []
"""The servers that this process started."""
known: dict[str, str] = {}
"""Server's name -> address, for each server used so far; in a server's program, for each server that it may use."""


def torchrun(python: str = sys.executable) -> tuple[str, str, str]:
    """Return the beginning of the command of torchrun with forked ranks."""
    return python, str(SERVER), "torchrun"


def share() -> str:
    """Return the folder of the servers. This process shares it with all processes that it starts later.

    Servers end with the process that made the folder, because only that process has the pipe ``held`` open for writing.
    """
    if FOLDER not in os.environ:
        os.environ[FOLDER] = folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.mkfifo(held := os.path.join(folder, "held"))
        os.open(held, os.O_RDWR)  # never closed; O_WRONLY would wait for a reader
    return os.environ[FOLDER]


def address(server: str) -> str:
    """Return the path of a server's socket. Starts the server if needed."""
    if server not in known:
        services = "" if server == SERVICES else address(SERVICES)
        folder = share()
        path = os.path.join(folder, f"{zlib.crc32(server.encode()):08x}")
        with open(os.path.join(folder, "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                _start_server(server, path, services)
        known[server] = path
    return known[server]


def _start_server(name: str, path: str, services: str) -> None:
    held = os.open(os.path.join(os.path.dirname(path), "held"), os.O_RDONLY | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(128)
        given = [listener.fileno(), held]
        python = sys.executable if name == SERVICES else name
        command = [python, str(SERVER), name, path, services, *map(str, given)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(command, env=env, pass_fds=given, stdin=subprocess.DEVNULL, start_new_session=True)
        )
    os.close(held)


def ask(server: str, request: object, files: Sequence[int] = ()) -> str:
    """Return a server's answer. ``files``: descriptors to send."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(server)
        socket.send_fds(channel, [json.dumps(request).encode()], files)
        return channel.recv(100).decode()


def start(
    server: str,
    command: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    files: Mapping[int, int],
    *,
    is_detached: bool = False,
) -> int:
    """Start a program, and return its process id.

    Args:
        files: descriptors of the program -> descriptors of this process.
        is_detached: nobody will ask for its exit status.
    """
    return int(ask(server, [list(command), dict(env), folder, list(files), is_detached], list(files.values())))


def start_service(command: Sequence[str], files: Mapping[int, int]) -> int:
    """Start a Python program that needs no torch, with these descriptors, as nobody's child. Return its process id."""
    if not FRESH:
        return start(address(SERVICES), command, os.environ, os.getcwd(), files, is_detached=True)
    actions = [(os.POSIX_SPAWN_DUP2, file, target) for target, file in files.items()]
    return os.posix_spawn(command[0], list(command), os.environ, file_actions=actions, setsid=True)


class Forked(subprocess.Popen[str]):
    """`subprocess.Popen` of a Python program that a server forks. The methods do the same as in the base class."""

    def __init__(self, server: str, command: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(command, text=True, **options)

    def _execute_child(  # noqa: PLR0913
        self,
        args: Sequence[str],
        executable: object,
        preexec_fn: object,
        close_fds: object,
        pass_fds: object,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        startupinfo: object,
        creationflags: object,
        shell: object,
        *rest: int,
    ) -> None:
        pipes = rest[:6]
        ends = pipes[0], pipes[3], pipes[5]  # the program's
        files = {standard: standard if end == -1 else end for standard, end in enumerate(ends)}
        try:
            self.pid = start(self._server, args, os.environ if env is None else env, str(cwd or os.getcwd()), files)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        while (status := ask(self._server, self.pid)) == "runs":
            if wait_flags & os.WNOHANG:
                return 0, 0
            time.sleep(_POLL_SECONDS)
        return self.pid, int(status)

    def _internal_poll(self, _deadstate: int | None = None, **_: object) -> int | None:
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and _deadstate is None and lock.acquire(blocking=False):
            try:
                pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                lock.release()
        return self.returncode


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """`subprocess.Popen` of a program with text output. A server forks it if it is torchrun with forked ranks."""
    if tuple(command[1:3]) == torchrun()[1:]:
        return rank(command, **options)
    return subprocess.Popen(command, text=True, **options)


def rank(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """`subprocess.Popen` of a Python program that starts with torch imported."""
    if FRESH:
        return subprocess.Popen(command, text=True, **options)
    return Forked(address(command[0]), command, **options)


def service(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """`subprocess.Popen` of a Python program that needs no torch."""
    if FRESH:
        return subprocess.Popen(command, text=True, **options)
    return Forked(address(SERVICES), command, **options)


def run(program: Path, env: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with captured output of a Python program that starts with torch imported.

    Raises:
        subprocess.TimeoutExpired: the program took too long, and was killed.
    """
    command = [sys.executable, str(program)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(address(command[0]), command, env=env, cwd=program.parent, **pipes) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
