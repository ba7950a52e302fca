"""Stacks of the rank's threads, requested over the socket or, if Python does not answer, with faulthandler's signal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_fr.monitor.process.connections import NO_CONNECTIONS, Connections
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.process.processor_wait import turns_of
from otel_fr.monitor.process.state import Process, parse_status
from otel_fr.rank_report import MAX_STACK, ReportedLoop
from otel_fr.stacks import site_of, threads_of

ANSWER_SECONDS = 0.3
"""How long a rank may take to answer before it counts as blocked."""
FILE_SECONDS = 0.3
"""How long faulthandler may take to write its text."""
PATIENCE_SECONDS = 2.0
"""The longest wait for an answer while the answering thread waits for a CPU, or py-spy stops it: the rank need not be
blocked then."""
STARVED_SHARE = 0.25
"""If a thread spends this share of the time waiting for a CPU, that counts as the reason for a missing answer."""
QUIET_SECONDS = 0.04
"""The file counts as complete once it has not grown for this long."""

_TGKILL = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "ppc64le": 250, "s390x": 241}
"""System call number of tgkill(2) by architecture. libc has a wrapper only from glibc 2.30 on."""
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "in an uninterruptible wait in the kernel",
    "Z": "a zombie: it has ended and its parent has not waited for it",
    "X": "dead",
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """The result of a request.

    Attributes:
        text, site: the stacks, and where the first thread is in the user's code; empty: unknown.
        doing: what the kernel shows the rank doing; see `otel_fr.monitor.process.state.describe`.
        connections: the rank's TCP connections.
        left_loops: see the rank report.
    """

    text: str = ""
    site: str = ""
    python_blocked: bool = False
    doing: str = ""
    connections: Connections = NO_CONNECTIONS
    left_loops: tuple[ReportedLoop, ...] = ()

    def reported(self, *, with_text: bool) -> dict[str, Any]:
        """Return the fields of a rank report."""
        text = self.text if with_text else ""
        found = {"stack": text, "site": self.site, "doing": self.doing, "left_loops": self.left_loops}
        return {"python_blocked": self.python_blocked, **found}


def tgkill(pid: int, tid: int, signal: int) -> None:
    """Send a signal to one thread.

    Raises:
        OSError: the signal cannot be sent (no such thread), or this architecture's call number is unknown.
    """
    number = _TGKILL.get(platform.machine())
    if number is None:
        raise OSError(f"tgkill is not known on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(pid), ctypes.c_long(tid), ctypes.c_long(signal)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def process_hint(pid: int) -> str:
    """Return why a process may not answer: its state and kernel function. "" if it runs or sleeps normally."""
    process = Process(pid)
    state = parse_status(process.text("status")).get("State", "")[:1]
    if state not in _STATES or process.is_read_here():
        return ""
    wchan = process.waits_in()
    return f"The process is {_STATES[state]}" + (f" (in {wchan})" if wchan else "") + "."


def in_order(text: str, caller: int = 0) -> str:
    """Reorder the stacks: the thread with the ident ``caller`` first, if there is one, then the main thread.

    faulthandler writes the newest thread first and the main thread last.
    """
    blocks = ["\n".join(line for line in one.splitlines() if line.strip()) for one in reversed(threads_of(text))]
    blocks.sort(key=lambda block: f" 0x{caller:016x} " not in block.partition("\n")[0])
    return "\n\n".join(blocks)


class StackRequest:
    """One request for the rank's stacks. The watch loop calls `step`. No method blocks.

    Args:
        process: the rank's process.
        meta: the ring's meta. Its keys ``stack_signal``, ``responder_tid`` and ``stack_file`` may be missing.
        asked: True if the request was sent over the socket.
        caller: ident of the thread that comes first; 0: the main thread.
    """

    def __init__(
        self, process: RankProcess, meta: Mapping[str, object], now: float, asked: bool, caller: int = 0
    ) -> None:
        self._process = process
        self._caller = caller
        self._signal = _integer(meta, "stack_signal")
        # Never the main thread: a signal interrupts its system calls (EINTR), which would change the job.
        self._thread = _integer(meta, "responder_tid")
        file = meta.get("stack_file")
        self._file = Path(file) if isinstance(file, str) and file else None
        self._answer_by = now + (ANSWER_SECONDS if asked else 0.0)
        self._patient_until = now + (PATIENCE_SECONDS if asked else 0.0)
        self._folder = Path(f"/proc/{process.pid}/task/{self._thread}")
        self._turns = turns_of(self._folder, int(now * 1e9))
        self._signalled_at: float | None = None
        self._start = 0
        self._size = 0
        self._grown_at = 0.0
        self.result: Stacks | None = None

    def answered(self, text: str, site: str) -> None:
        """Take the rank's answer. A late answer is used, too, but then the rank counts as blocked."""
        self.result = Stacks(text[:MAX_STACK], site or site_of(text), self._signalled_at is not None)

    def step(self, now: float) -> float | None:
        """Do what is due. Return the seconds until the next step, or None once there is a `result`."""
        if self.result is None and self._signalled_at is None:
            if now >= self._answer_by and self._is_kept_from_answering(now):
                self._answer_by = min(now + ANSWER_SECONDS, self._patient_until)
            if now < self._answer_by:
                return self._answer_by - now
            self._send_signal(now)
        if self.result is None:
            self._check_file(now)
        return None if self.result is not None else 0.02

    def _is_kept_from_answering(self, now: float) -> bool:
        """Return True if the answering thread got no CPU since the previous check, or if py-spy stops the rank now."""
        is_read = Process(self._process.pid).is_read_here()
        before, self._turns = self._turns, turns_of(self._folder, int(now * 1e9))
        if is_read:
            return True
        if before is None or self._turns is None:
            return False
        waited, passed = self._turns.waited_ns - before.waited_ns, self._turns.at_ns - before.at_ns
        return waited >= STARVED_SHARE * passed or self._turns.is_ready

    def _send_signal(self, now: float) -> None:
        self._signalled_at = now
        sendable = self._signal and self._thread and self._process.alive()
        # Without a handler the signal would end the rank.
        if self._file is None or not sendable or not Process(self._process.pid).catches(self._signal):
            self._finish("")
            return
        try:
            self._start = self._size = self._file.stat().st_size  # fails if the program has replaced the handler
            tgkill(self._process.pid, self._thread, self._signal)
        except OSError:
            self._finish("")

    def _check_file(self, now: float) -> None:
        assert self._file is not None
        assert self._signalled_at is not None
        size = self._size
        with contextlib.suppress(OSError):
            size = self._file.stat().st_size
        if size > self._size:
            self._size = size
            self._grown_at = now
        done = size > self._start and now - self._grown_at >= QUIET_SECONDS
        if done or now - self._signalled_at >= FILE_SECONDS:
            self._finish(self._read())

    def _read(self) -> str:
        assert self._file is not None
        try:
            with self._file.open("rb") as file:
                file.seek(self._start)
                return file.read(4 * MAX_STACK).decode("utf-8", "replace")
        except OSError:
            return ""

    def _finish(self, raw: str) -> None:
        text = in_order(raw, self._caller)
        hint = process_hint(self._process.pid)
        self.result = Stacks("\n".join(part for part in (hint, text) if part)[:MAX_STACK], site_of(text), True)


def _integer(meta: Mapping[str, object], key: str) -> int:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
