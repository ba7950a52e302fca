"""The rank's end of the connection to its monitor. Answers requests for stacks, and sends the rank's requests."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.capture.sites import Sites
from otel_fr.capture.stacks import all_stacks

_log = logging.getLogger("otel_fr")

_MAX_PACKET: Final = 1 << 18
"""Most bytes read of a packet. By default, the kernel passes at most 208 KiB (net.core.wmem_max)."""


class Responder:
    """A daemon thread blocked in ``recv``. It uses no processor time until the monitor asks.

    Attributes:
        thread_id: the thread's native id.
        has_lost_monitor: True once the connection has ended. The monitor closes its end only when it ends.
    """

    def __init__(
        self,
        connection: socket.socket,
        sites: Sites,
        on_monitor: Callable[[int], None],
        on_other: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Args:
        on_monitor: called when the monitor sends its process id. The monitor is not a child of this process.
        on_other: called with messages that this class does not handle.
        on_lost: called last on the thread, when either side has ended the connection.
        """
        self._socket = connection
        self._sites = sites
        self._on_monitor = on_monitor
        self._on_other = on_other
        self._on_lost = on_lost
        self._goodbye = threading.Event()
        self.has_lost_monitor = False
        self._thread = threading.Thread(target=self._run, name="otel-fr", daemon=True)
        self._thread.start()
        self.thread_id = self._thread.native_id or 0

    def _run(self) -> None:
        try:
            while True:
                packet = self._socket.recv(_MAX_PACKET)
                if not packet:
                    break
                message: Any = None
                with contextlib.suppress(ValueError):
                    message = json.loads(packet)
                if isinstance(message, dict):
                    self._answer(message)
        except Exception:  # noqa: BLE001, S110 - the monitor is gone; the job must not see it
            pass
        finally:
            self.has_lost_monitor = True
            self._goodbye.set()
            self._on_lost()

    def _answer(self, message: dict[str, Any]) -> None:
        """Never raises: while the monitor lives, it must not be replaced."""
        try:
            self._handle(message)
        except Exception:  # noqa: BLE001 - for example, no thread can be started
            _log.debug("otel-fr: could not handle a message of the monitor", exc_info=True)

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("cmd") == "stacks":
            caller = int(message.get("ident", 0)), str(message.get("name", ""))
            text, site, tid = all_stacks(self._sites, caller, skip=threading.get_ident())
            self.send({"stacks": text, "site": site, "tid": tid, "id": message.get("id")})
        elif isinstance(message.get("pid"), int):
            self._on_monitor(message["pid"])
        elif message.get("ok") == "bye":
            self._goodbye.set()
        else:
            self._on_other(message)

    def send(self, message: dict[str, Any]) -> bool:
        """Send the monitor a message. Never waits. Return False if the message cannot be sent."""
        # Not as escapes, which take up to 12 bytes for each character: a packet has an upper bound (`MAX_TEXT`).
        packet = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            self._socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def say_goodbye(self, seconds: float) -> bool:
        """Notify the monitor that this rank ends, and wait until the monitor has sent its data or has ended.

        Return False if it cannot be notified, or does neither in time.
        """
        return self.send({"cmd": "bye"}) and self._goodbye.wait(seconds)

    def close(self) -> None:
        """End the connection, and with it the thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(0.5)
        self._socket.close()

    def abandon(self) -> None:
        """In a forked child, close the child's copy of the connection without ending the parent's connection."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


class StackSignal:
    """Writes all stacks to a file when a real-time signal arrives, even while the GIL is held (`faulthandler`).

    The monitor sends the signal only to the responder's thread, so it interrupts no system call of the job. It sends no
    signal if the file does not exist, so the file is removed once the program sets its own handler.

    Attributes:
        number: the signal.
        path: the file, with mode 0600.
    """

    def __init__(self, path: Path, replaced: Replacements) -> None:
        """Raises OSError if no real-time signal is free, or the file cannot be created."""
        self.path = path
        for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1):
            if _is_default(number):
                break
        else:
            raise OSError("no real-time signal is free")
        self.number = int(number)
        self._is_ours = True
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            faulthandler.register(self.number, file=self._file, all_threads=True, chain=False)
        except BaseException:
            os.close(self._file)
            raise
        replaced.put(Attribute.SIGNAL, signal, self._hook)

    def _hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(previous)
        def signal_(signalnum: int, handler: Any) -> Any:
            before = previous(signalnum, handler)
            if self._is_ours and signalnum == self.number:
                self._is_ours = False
                with contextlib.suppress(OSError):
                    self.remove_file()
            return before

        return signal_

    def close(self, may_come: bool) -> None:
        """Free the signal, unless the program has taken it, and remove the file.

        Args:
            may_come: True if the monitor may still send the signal. It then keeps its handler: without one, it would
                end the process.
        """
        if not self._is_ours:
            return
        self.remove_file()
        if not may_come:
            faulthandler.unregister(self.number)
            with contextlib.suppress(OSError):
                os.close(self._file)

    def remove_file(self) -> None:
        """Remove the file. The signal keeps its handler."""
        self.path.unlink(missing_ok=True)


def _is_default(number: int) -> bool:
    """Return True if the signal has no handler. Python knows only handlers that it has set, the kernel knows all."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    bit = 1 << (number - 1)
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("SigCgt", "SigIgn") and int(value, 16) & bit:
                return False
    return True
