"""Unit tests start no process and listen nowhere, so they are quick and a busy machine does not disturb them."""

from __future__ import annotations

import multiprocessing.process
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from otel_fr_collector.incidents import judge

from otel_fr.dumps import read
from otel_fr.dumps.processes import Work
from otel_fr.dumps.safe_parse import Limits, UnreadableDump
from tests.support.in_place import InPlace

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


@pytest.fixture(autouse=True)
def _files_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests trust their files: no process with limits reads them."""

    def read_all(work: Work, _: Limits, paths: Sequence[Path], __: int) -> Iterator[tuple[Path, Any]]:
        for path in paths:
            try:
                yield path, work(path, lambda size: None)
            except UnreadableDump as error:
                yield path, error

    monkeypatch.setattr(read, "read_all", read_all)


@pytest.fixture(autouse=True)
def _large_runs_are_judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "Aside", InPlace)
