"""How the rank ended: by which signal, with which exit code. The rank is not a child of the monitor."""

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
"""In the request: the exit status is wanted; in the answer: it is there (Linux >= 6.15)."""
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""mask, cgroup id, eleven ids, exit code (a wait status)."""
_STAT_EXIT_CODE = 49
"""In ``/proc/PID/stat``, counted from the field after the command's name, which may contain blanks and parentheses."""
_ENDED = "ZX"
"""States of a process that has ended: a zombie, dead."""
_PATIENCE = 0.05
"""Seconds in which an exit status must become known."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``known`` is False if the exit status could not be read; code and signal are 0 then."""

    code: int = 0
    signal: int = 0
    known: bool = False

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        """From a status as waitpid(2) gives it."""
        return cls(code=(status >> 8) & 0xFF, signal=status & 0x7F, known=True)

    def is_clean(self, *, said: bool, exit_message: object) -> bool:
        """Whether the rank has ended without an error. A program that turns Ctrl-C into an exit has not ended well.

        A known exit status decides alone: a rank that calls ``sys.exit(3)`` says that it ends cleanly, too.

        Args:
            said: it has said so. exit_message: what it passed to ``sys.exit``, or was handling then.
        """
        is_clean = self.code == 0 and self.signal == 0 if self.known else said
        return is_clean and not tells_of_stop(str(exit_message or ""))

    def is_for_nodes(self, path: str) -> bool:
        """Whether its launcher ended it because nodes join the job, and for no other reason.

        Args:
            path: `otel_fr.config.Config.nodes_changed`.
        """
        with contextlib.suppress(OSError):
            return self.signal == signal.SIGTERM and bool(path) and os.stat(path).st_size > 0
        return False


def was_stopped(number: int, exception: ReportedException | None, exit_message: object) -> bool:
    """Something outside has ended the rank: a launcher, or the user's Ctrl-C.

    Args:
        number: of the signal that ended it. exit_message: as in `Exit.is_clean`.
    """
    told = "" if exception is None else exception.text, str(exit_message or "")
    return number in STOP_SIGNALS or any(map(tells_of_stop, told))


class RankProcess:
    """The rank's process. Created while the rank is alive, and used until after its end.

    Attributes:
        fd: a pidfd, readable once the process has ended; None where the kernel has none: use `alive` instead.
    """

    def __init__(self, pid: int, start_ns: int, fd: int | None = None) -> None:
        """Args: ``start_ns`` as `otel_fr.ring.process_start_ns` gives it; 0: not known. ``fd``: a pidfd that the
        rank itself has opened, so it refers to the rank even if the pid has been reused.
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
        """The letter of its state; "": it is gone, and the pid may belong to a later process."""
        now = process_state(self.pid)
        return now.letter if now is not None and self._start_ns in (0, now.started_ns) else ""

    def alive(self) -> bool:
        state = self._state()
        return bool(state) and state not in _ENDED

    def send_signal(self, number: int) -> bool:
        """Send a signal to just this process.

        Returns:
            False: it has ended, or the kernel has no pidfds, and the pid may be another process's by now.
        """
        if self.fd is None or not self.alive():
            return False
        try:
            signal.pidfd_send_signal(self.fd, number)
        except OSError:
            return False
        return True

    def how_ended(self) -> Exit:
        """The exit status of the ended process.

        A zombie has it in ``/proc`` until its parent has waited for it; from then on the pidfd has it. In between
        neither may have it for an instant, so this retries for `_PATIENCE` seconds.
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
