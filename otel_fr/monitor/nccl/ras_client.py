"""Asks NCCL's RAS for the state of the job's communicators in case of a fault, saves the answer, and reports oddities.

A thread of NCCL in some process of this machine answers on TCP, by default on localhost:28028. It asks all processes of
the job, so only the first monitor of the job's first machine asks, at most once a minute. NCCL 2.31 also has
diagnostics: a text that compares the devices (model, driver, ECC, Xid, NVLink) and NCCL's variables of all ranks.
Source of the protocol: client.cc and client_support.cc in src/ras of NVIDIA/nccl.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_fr.dumps.nccl_ras import (
    MAX_BYTES,
    RAS_FILE,
    RasAnswer,
    essence,
    is_answer,
    names_process,
    odd_diagnostics,
    parse_answer,
)
from otel_fr.dumps.write import replacing
from otel_fr.rank_report.ras import ReportedRas

_log = logging.getLogger("otel_fr.monitor")

ADDRESS: Final = ("localhost", 28028)
"""NCCL's default of ``NCCL_RAS_ADDR``."""
TIMEOUT: Final = 1
"""Seconds for which RAS waits for the other processes. It may take 5 s more."""
SECONDS: Final = 8.0
"""Longest time until the answer is complete. Only a separate thread waits for it."""
TRIES: Final = 4
"""How many connections are tried. Each goes to one process of the machine, and a stopped process does not answer."""
MAX_TOLD: Final = 8 << 20
"""Largest answer that is also reported. It is parsed in this process, which takes twice as much memory. Larger answers,
with some 12,000 ranks in communicators, are only in the file."""
PAUSE: Final = 60.0
"""Seconds between two requests."""
STATUS: Final = (f"TIMEOUT {TIMEOUT}", "SET FORMAT json", "STATUS")
DIAGNOSTICS: Final = (f"TIMEOUT {TIMEOUT}", "DIAGNOSTICS")
"""The commands for diagnostics, which exist only as text. They need a new connection: NCCL ends it after an answer."""
_REFUSALS: Final = (b"ERROR", b"BUSY")
_HANDSHAKE_SECONDS: Final = 1.0
_MAX_LINE: Final = 1024


class RasError(Exception):
    """There is no answer. The text says why."""


def ras_address(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address of RAS. None: it is switched off, or its address is invalid."""
    if env.get("NCCL_RAS_ENABLE", "").strip() == "0":
        return None
    given = env.get("NCCL_RAS_ADDR", "").strip()
    if not given:
        return ADDRESS
    host, _, port = given.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < len(port) < 6):
        return None
    return host.strip("[]"), int(port)


def ask_ras(address: tuple[str, int], commands: Sequence[str] = STATUS, seconds: float = SECONDS) -> bytes:
    """Return the answer to the last command: the status of all communicators as JSON, or diagnostics as text.

    Raises:
        RasError: nothing answers, or the server does not know a command, as before NCCL 2.28 (diagnostics: 2.31).
    """
    deadline = time.monotonic() + seconds
    problem = "nothing was tried"
    for _ in range(TRIES):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return _ask(address, commands, deadline)
        except TimeoutError:
            problem = "no answer in time"
        except ConnectionRefusedError as error:
            raise RasError("nothing listens there") from error
        except OSError as error:
            problem = str(error)
    raise RasError(problem)


def _ask(address: tuple[str, int], commands: Sequence[str], deadline: float) -> bytes:
    """Return the answer to the last command. The other commands are settings."""
    with socket.create_connection(address, _HANDSHAKE_SECONDS) as connection:
        greeting = _exchange(connection, "CLIENT PROTOCOL 2", deadline)
        if not greeting.upper().startswith("SERVER PROTOCOL "):
            raise RasError("what listens there is not NCCL's RAS")
        *settings, question = commands
        for command in settings:
            answer = _exchange(connection, command, deadline)
            if answer.upper() != "OK":
                raise RasError(f"it does not know {command!r}: this NCCL is older than 2.28")
        connection.sendall(question.encode() + b"\n")
        parts: list[bytes] = []
        size = 0
        for part in _parts(connection, deadline):
            if not parts and part.startswith(_REFUSALS):  # after a refusal, NCCL may leave the connection open
                raise RasError(f"it refuses {question!r}")
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                raise RasError(f"the answer has more than {MAX_BYTES >> 20} MiB")
        return b"".join(parts)


def _parts(connection: socket.socket, deadline: float) -> Iterator[bytes]:
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise RasError("no whole answer in time")
        connection.settimeout(left)
        part = connection.recv(1 << 16)
        if not part:
            return
        yield part


def _exchange(connection: socket.socket, command: str, deadline: float) -> str:
    """Return the answer to a command. The complete answer must come within `_HANDSHAKE_SECONDS`."""
    until = min(deadline, time.monotonic() + _HANDSHAKE_SECONDS)
    connection.sendall(command.encode() + b"\n")
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(_MAX_LINE)
        if not part:
            raise ConnectionError("the connection was closed")
        line += part
    return line.decode("utf-8", "replace").strip()


class RasWatch:
    """Asks in a thread of its own, and writes the answer beside the flight-recorder files.

    Args:
        address: address of RAS; None: RAS is not asked.
        pid: process id of the rank. An answer without it belongs to another job, and is dropped.
        is_first: `otel_fr.monitor.control.node.Node.is_first`.
    """

    def __init__(self, address: tuple[str, int] | None, pid: int, is_first: Callable[[str, float], bool]) -> None:
        self._address = address
        self._pid = pid
        self._is_first = is_first
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self._told: tuple[RasAnswer, Sequence[str], float, str] | None = None

    def ask(self, folder: Callable[[], Path], now: float, run: str = "") -> None:
        """Ask RAS, because there is a fault. Never waits.

        Args:
            folder: returns the folder of the flight-recorder files. Called in the thread: storage may not answer.
            now: monotonic seconds.
            run: id of the run in which the fault is.
        """
        if self._address is None or now < self._not_before:
            return
        self._not_before = now + PAUSE
        if not self._is_first("NCCL's RAS is asked", PAUSE):
            return
        given = self._address, folder, run
        self._thread = threading.Thread(target=self._run, args=given, name="otel-fr-ras", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for an answer, if RAS was asked."""
        if self._thread is not None:
            self._thread.join(seconds)

    def take(self, now: float, run: str = "") -> ReportedRas | None:
        """Return what is odd in an answer that has come since the last call, or None.

        Args:
            now: monotonic seconds.
            run: id of the present run. An answer about a fault in another run is dropped.
        """
        told, self._told = self._told, None
        if told is None or told[-1] != run:
            return None
        answer, diagnostics, asked, _ = told
        return essence(answer, max(0.0, now - asked), diagnostics)

    def _run(self, address: tuple[str, int], find: Callable[[], Path], run: str) -> None:
        try:
            asked = time.monotonic()
            data = ask_ras(address)
            if not is_answer(data) or not data[-8:].rstrip().endswith(b"}"):
                raise RasError("the answer is incomplete")
            if not names_process(data, self._pid):
                raise RasError("the answer is of another job")
            folder = find()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"{RAS_FILE}{socket.gethostname()}"
            with replacing(folder / f"{name}.json") as file:
                file.write(data)
            if len(data) > MAX_TOLD:
                return
            answer = parse_answer(data)
            self._told = answer, (), asked, run
            diagnostics = self._diagnose(address, folder / f"{name}.txt")
            if diagnostics:
                self._told = answer, diagnostics, asked, run
        except Exception as error:  # noqa: BLE001 - this is additional evidence, and nothing depends on it
            _log.info("no evidence from NCCL's RAS at %s:%s: %s", *address, error)

    def _diagnose(self, address: tuple[str, int], path: Path) -> list[str]:
        """Write NCCL's diagnostics to a file. Return the ones that may need attention."""
        try:
            data = ask_ras(address, DIAGNOSTICS)
        except RasError as error:
            _log.info("no diagnostics from NCCL's RAS at %s:%s: %s", *address, error)
            return []
        with replacing(path) as file:
            file.write(data)
        return odd_diagnostics(data)
