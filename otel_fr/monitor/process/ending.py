"""Finds how the rank ended: by which signal, or with which exit code. The rank is not a child of the monitor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from otel_fr.communication_errors import STOP_SIGNALS, tells_of_stop
from otel_fr.rank_report import ReportedException
from otel_fr.ring import process_state

_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info) with its first published size of 64 bytes (linux/pidfd.h, 6.13)."""
_PIDFD_INFO_EXIT = 1 << 3
"""In the request: asks for the exit status. In the answer: the exit status is there (Linux >= 6.15)."""
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""mask, cgroup id, eleven ids, exit code (a wait status)."""
_STAT_EXIT_CODE = 49
"""Index of the field in ``/proc/PID/stat``, counted from the field after the command's name, which may contain blanks
and parentheses."""
_ENDED = "ZX"
"""States of a process that has ended: a zombie, dead."""
_PATIENCE = 0.05
"""Longest wait for the exit status, in seconds."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``known`` is False if the exit status could not be read; code and signal are 0 then."""

    code: int = 0
    signal: int = 0
    known: bool = False

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        """Read a status as returned by waitpid(2)."""
        return cls(code=(status >> 8) & 0xFF, signal=status & 0x7F, known=True)

    def is_clean(self, *, said: bool, exit_message: object) -> bool:
        """Return True if the rank has ended without an error. A program that turns Ctrl-C into a normal exit has not.

        A known exit status takes precedence over ``said``: a rank that calls ``sys.exit(3)`` also announces a clean
        end.

        Args:
            said: True if the rank has announced a clean end.
            exit_message: the argument of ``sys.exit``, or the exception that was being handled then.
        """
        is_clean = self.code == 0 and self.signal == 0 if self.known else said
        return is_clean and not tells_of_stop(str(exit_message or ""))

    def is_for_nodes(self, path: str) -> bool:
        """Return True if the launcher ended the rank only because nodes join the job.

        Args:
            path: `otel_fr.config.Config.nodes_changed`.
        """
        with contextlib.suppress(OSError):
            return self.signal == signal.SIGTERM and bool(path) and os.stat(path).st_size > 0
        return False


def was_stopped(number: int, exception: ReportedException | None, exit_message: object) -> bool:
    """Return True if something outside has ended the rank: a launcher, or the user's Ctrl-C.

    Args:
        number: the signal that ended the rank.
        exit_message: see `Exit.is_clean`.
    """
    told = "" if exception is None else exception.text, str(exit_message or "")
    return number in STOP_SIGNALS or any(map(tells_of_stop, told))


class RankProcess:
    """The rank's process. Created while the rank is alive, and used until after its end.

    Attributes:
        fd: a pidfd, readable once the process has ended. None if the kernel has no pidfds: use `alive` instead.
    """

    def __init__(self, pid: int, start_ns: int, fd: int | None = None) -> None:
        """Args:
        start_ns: see `otel_fr.ring.process_start_ns`; 0: unknown.
        fd: a pidfd that the rank itself has opened, so that it refers to the rank even if the pid has been reused.
        """
        self.pid = pid
        self._start_ns = start_ns
        self.fd = fd
        if fd is not None:
            return
        with contextlib.suppress(OSError, AttributeError):
            self.fd = os.pidfd_open(pid)
        if not self._state():
            self.close()

    def _state(self) -> str:
        """Return the letter of the process's state; "": it no longer exists, and another process may have the pid."""
        now = process_state(self.pid)
        return now.letter if now is not None and self._start_ns in (0, now.started_ns) else ""

    def alive(self) -> bool:
        state = self._state()
        return bool(state) and state not in _ENDED

    def send_signal(self, number: int) -> bool:
        """Send a signal to this process, and never to a later process with the same pid.

        Returns:
            False if the process has ended, or the kernel has no pidfds.
        """
        if self.fd is None or not self.alive():
            return False
        try:
            signal.pidfd_send_signal(self.fd, number)
        except OSError:
            return False
        return True

    def how_ended(self) -> Exit:
        """Return the exit status of the ended process.

        ``/proc`` shows a zombie's status until the parent has waited for it. From then on, the pidfd shows it. For an
        instant in between, neither may show it, so this retries for `_PATIENCE` seconds.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            status = self._from_zombie()
            if status is None:
                status = self._from_pidfd()
            if status is not None:
                return Exit.from_wait_status(status)
            if time.monotonic() >= deadline:
                return Exit()
            time.sleep(0.005)

    def _from_zombie(self) -> int | None:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            status = int(fields[_STAT_EXIT_CODE])
        except (OSError, IndexError):
            return None
        return status if fields[0] in _ENDED and self._state() else None

    def _from_pidfd(self) -> int | None:
        if self.fd is None:
            return None
        request = bytearray(_PIDFD_INFO.size)
        struct.pack_into("=Q", request, 0, _PIDFD_INFO_EXIT)
        try:
            fcntl.ioctl(self.fd, _PIDFD_GET_INFO, request)
        except OSError:
            return None
        fields = _PIDFD_INFO.unpack(request)
        return int(fields[-1]) if fields[0] & _PIDFD_INFO_EXIT else None

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
