"""A real PostgreSQL server for tests, from Debian's package ``postgresql``."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.support.mounts import tmpfs
from tests.support.ports import free_port
from tests.support.waiting import until

USER = "postgres"
PASSWORD = "not-to-be-shown:/@"


def binaries() -> Path | None:
    """Return the folder of the server's programs: ``OTEL_FR_POSTGRES_BIN``, the one on PATH, or Debian's newest."""
    named = os.environ.get("OTEL_FR_POSTGRES_BIN")
    found = shutil.which("initdb")
    folders = [Path(named)] if named else []
    folders += [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in folders if (one / "postgres").exists() and (one / "initdb").exists()), None)


class PostgresServer:
    """One server with its own folder. `kill` ends it, and `start` starts it again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._count = 0
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            for path in (folder, secret):
                shutil.chown(path, USER, USER)
        folder.chmod(0o755)
        options = ["-D", str(folder / "data"), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8"]
        self._run("initdb", *options, "--no-locale", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_user(), str(self._programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._folder,
            "fsync": "off", "shared_buffers": "16MB", "max_connections": "60",
        }  # fmt: skip
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log_path = self._folder / "log"
        with log_path.open("ab") as log:
            process = self.process = subprocess.Popen(
                [*_as_user(), str(self._programs / "postgres"), "-D", str(self._folder / "data"), *arguments],
                stdout=log, stderr=log, start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        until(lambda: process.poll() is not None or self.answers())
        assert process.poll() is None, log_path.read_text()[-2_000:]

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres"), connect_timeout=5):
            return True
        return False

    def kill(self) -> None:
        """Send SIGKILL to the server and to the processes of its connections, so that nothing more is written.

        While one of them lives it has the shared memory, so no other server could start in the folder.
        """
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)  # so that it starts no more processes
        with contextlib.ExitStack() as stack:
            ends = []
            for one in self._others():
                with contextlib.suppress(ProcessLookupError):
                    ends.append(os.pidfd_open(one))
                    stack.callback(os.close, ends[-1])
            self.send(signal.SIGKILL)
            self.process.wait()
            for end in ends:
                select.select([end], [], [])
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def send(self, number: int) -> None:
        """Send a signal, such as SIGSTOP, to all of the server's processes."""
        assert self.process is not None
        for one in [self.process.pid, *self._others()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)

    def _others(self) -> list[int]:
        """Return the server's processes except the first. Each has its own process group."""
        assert self.process is not None
        main = self.process.pid
        return [int(one) for one in Path(f"/proc/{main}/task/{main}/children").read_text().split()]

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        self._count += 1
        name = f"test_{self._count}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    @contextlib.contextmanager
    def on_tmpfs(self, options: str) -> Iterator[tuple[str, Path]]:
        """Yield the URL of an empty database with its tables in a small tmpfs, and the tmpfs's folder."""
        user = pwd.getpwnam(USER) if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        folder = self._folder / "small"
        with tmpfs(folder, f"{options},mode=700,uid={user.pw_uid},gid={user.pw_gid}"):
            url = self.new_database()
            name = url.rpartition("/")[2]
            with psycopg.connect(self.url("postgres"), autocommit=True) as db:
                db.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
                db.execute(f"ALTER DATABASE {name} SET default_tablespace = 'small'".encode())
            try:
                yield url, folder
            finally:
                self.kill()

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server. Skips the test if there is none on this machine."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql), nor named by OTEL_FR_POSTGRES_BIN")
    if os.getuid() == 0 and not _has_user():
        pytest.skip(f"PostgreSQL's server refuses to run as root, and there is no user {USER}")
    # Not in pytest's folder: only the user who runs pytest may enter it.
    with tempfile.TemporaryDirectory(prefix="otel-fr-postgres-", ignore_cleanup_errors=True) as name:
        server = PostgresServer(Path(name), programs)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                server.kill()


@functools.cache
def _has_user() -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(USER))
    return False


def _as_user() -> list[str]:
    """Return a command prefix, because the server refuses to run as root."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"] if os.getuid() == 0 else []
