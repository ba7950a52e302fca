"""Free ports, for programs with a port in their configuration."""

from __future__ import annotations

import random
import socket
import subprocess
from pathlib import Path

from tests.support.waiting import wait_for

_FIRST = 15_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port below the range of outgoing connections, so that none takes it before the program does.

    While this process lives, this function returns the port to no other test process.
    """
    chance = random.SystemRandom()  # the default generator has the same seed in all processes of a test run
    last = int(_OUTGOING.read_text().split()[0])
    for _ in range(1000):
        port = chance.randrange(min(_FIRST, last // 2), last)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                _reserve(port)
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def _reserve(port: int) -> None:
    """Reserve a port by a name in Linux's abstract namespace. The name vanishes with the process.

    Raises:
        OSError: another process has it.
    """
    name = socket.socket(socket.AF_UNIX)
    name.bind(f"\0otel-fr-test-port-{port}")
    _reserved.append(name)


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def wait_for_port(address: str, process: subprocess.Popen[bytes]) -> None:
    """Return once ``process`` listens at ``address``. Fail if the process ends before."""
    host, port = address.rsplit(":", 1)

    def listens() -> bool:
        assert process.poll() is None, f"process {process.pid} has ended"
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    assert wait_for(listens), f"nothing listens on {address}"
