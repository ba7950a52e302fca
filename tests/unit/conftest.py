"""Unit tests start no process and listen nowhere, so they are quick and a busy machine does not disturb them."""

from __future__ import annotations

import multiprocessing.process
import os
import socket
import subprocess
import sys
from typing import NoReturn

import pytest

_FORBIDDEN = [
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (os, "fork"),
    (os, "forkpty"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
    (socket.socket, "listen"),
]


@pytest.fixture(autouse=True)
def _no_process_and_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("a unit test starts a process or listens: it belongs in tests/integration")

    for target, name in _FORBIDDEN:
        monkeypatch.setattr(target, name, refuse)
    for module in ("grpc", "grpc.aio"):  # their servers listen without Python's sockets
        if module in sys.modules:
            monkeypatch.setattr(sys.modules[module], "server", refuse)
