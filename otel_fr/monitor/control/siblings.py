"""One control stream for all monitors of a run on one machine, and one request for their reports.

One monitor is the watcher: it passes commands to the others (its siblings), and sends the reports that they pass to it.
The watcher holds a lock in the shared folder (`otel_fr.monitor.control.node`), and listens on a socket there. The
siblings connect to this socket. When the watcher ends, in whatever way, the kernel releases both, and another monitor
takes over. The watcher never waits for a sibling: one that does not read loses commands, which are counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from otel_fr.monitor.control.node import MAX_MEMBERS, has_members
from otel_fr.monitor.wake import Wake

HEARTBEAT_SECONDS = 1.0
"""How often the watcher sends a sign of life."""
HEARD_SECONDS = 1.5
"""How long after its last packet a watcher is trusted to send the reports passed to it."""
MUTE_SECONDS = 3.0
"""How long a watcher may be silent before it counts as stopped."""
TAKE_SECONDS = 1.0
"""How long a monitor tries to find the watcher, or to become it."""
RETRY_SECONDS = 0.01
HANDOVER_SECONDS = 1.0
"""How long a leaving watcher passes commands on until the siblings have another watcher."""
MAX_PACKET = 1 << 20
"""Most bytes of a packet, and of the packets that wait for a sibling, if the kernel allows it (net.core.wmem_max)."""

MAX_REPORT = 64 << 10
"""Most bytes that a sibling passes at once."""
COMMAND, STATE, LEAVING, TURN, REPORT = b"C", b"S", b"L", b"T", b"R"
"""First byte of a packet. From the watcher: a serialised command; the state of the stream; the watcher leaves, but
passes commands on until another takes over; the watcher reports its progress now. From a sibling: a request."""
CLOSED, OPENING = 0.0, -1.0
"""States of the stream. Any other value is the number of seconds between two reports that the collector allows."""
_SECONDS = struct.Struct("!d")
_CREDENTIALS = struct.Struct("3i")  # of unix(7): pid, uid, gid

_log = logging.getLogger("otel_fr.monitor")


class Line:
    """The connection to the watcher. ``first``: the first packet that came."""

    def __init__(self, connection: socket.socket, first: bytes) -> None:
        self._connection = connection
        self._first = first
        self._heard_at = time.monotonic()

    def receive(self, seconds: float) -> bytes | None:
        """Return the next packet. b"": the connection has ended. None: no packet has come in time."""
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            if not _is_readable(self._connection, seconds):
                return None
            self._heard_at = time.monotonic()
            return self._connection.recv(MAX_PACKET)
        except OSError:
            return b""

    def pass_report(self, request: bytes) -> bool:
        """Make the watcher send a request. Return False if it does not take the request, or seems to be stopped.

        May be called on any thread.
        """
        is_alive = time.monotonic() - self._heard_at < HEARD_SECONDS
        return is_alive and len(request) < MAX_REPORT and _send(self._connection, REPORT + request)

    def hang_up(self) -> None:
        """End the connection. May be called on any thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def state_in(packet: bytes) -> float:
    """Return the state of the stream from a packet of the kind `STATE`."""
    return float(_SECONDS.unpack(packet[1:])[0])


class Hub:
    """Serves the watcher's siblings in a thread.

    Args:
        listener: the socket to which they connect.
        release: called when the socket is closed, so that another monitor can become the watcher.

    Attributes:
        changed: set when siblings have come or gone.
        on_report: called in the thread with each request that a sibling passes.
    """

    def __init__(self, listener: socket.socket, release: Callable[[], None]) -> None:
        self._listener = listener
        self._release: Callable[[], None] | None = release
        self._siblings: dict[socket.socket, int | None] = {}
        self._lock = threading.Lock()
        self._state = STATE + _SECONDS.pack(CLOSED)
        self._wake = Wake()
        self._is_leaving = self._is_over = False
        self._alone = threading.Event()
        self.changed = threading.Event()
        self.on_report: Callable[[bytes], None] = lambda _: None
        threading.Thread(target=self._run, name="otel-fr-siblings", daemon=True).start()

    def ranks(self) -> list[int]:
        """Return the ranks of the siblings in ascending order."""
        with self._lock:
            return sorted({rank for rank in self._siblings.values() if rank is not None})

    def pass_on(self, command: bytes, ranks: Collection[int]) -> int:
        """Send a command to the siblings of these ranks, or to all if ``ranks`` is empty. Return how many did not take
        it."""
        with self._lock:
            items = self._siblings.items()
            own = [one for one, rank in items if rank is not None and (not ranks or rank in ranks)]
            return sum(not _send(one, COMMAND + command) for one in own)

    def say(self, state: float) -> None:
        """Send the state of the stream to the siblings."""
        with self._lock:
            self._state = STATE + _SECONDS.pack(state)
            self._tell(self._state)

    def begin_turn(self) -> None:
        """Make the siblings report now."""
        with self._lock:
            self._tell(TURN)

    def leave(self) -> None:
        """Let another monitor become the watcher. Blocks while there are siblings, for at most `HANDOVER_SECONDS`."""
        self._is_leaving = True
        self._wake.set()
        self._alone.wait(HANDOVER_SECONDS)

    def close(self) -> None:
        """End all connections."""
        self._is_over = True
        self._wake.set()

    # ---- in the thread

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._wake, selectors.EVENT_READ)
                selector.register(self._listener, selectors.EVENT_READ)
                self._serve(selector)
        except OSError as error:  # the siblings find another watcher
            _log.warning("no longer passing commands to the other ranks of this machine: %s", error)
        self._stop_listening()
        with self._lock:
            for sibling in self._siblings:
                sibling.close()
            self._siblings.clear()
        self._wake.close()
        self._alone.set()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        beat_at = 0.0
        while not self._is_over:
            for key, _ in selector.select(HEARTBEAT_SECONDS):
                if key.fileobj is self._wake:
                    self._wake.clear()
                elif key.fileobj is self._listener:
                    self._accept(selector)
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(selector, key.fileobj)
            if self._is_leaving and self._release is not None:
                selector.unregister(self._listener)
                self._stop_listening()
                with self._lock:
                    self._tell(LEAVING)
            if self._is_leaving and not self._siblings:
                self._alone.set()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + HEARTBEAT_SECONDS
                with self._lock:
                    self._tell(self._state)

    def _stop_listening(self) -> None:
        self._listener.close()
        release, self._release = self._release, None
        if release is not None:
            release()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            sibling, _ = self._listener.accept()
        except OSError:  # it has ended already, or there are too many open files
            time.sleep(RETRY_SECONDS)
            return
        if len(self._siblings) >= MAX_MEMBERS - 1 or not _is_of_same_user(sibling):
            sibling.close()
            return
        sibling.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET)
        with self._lock:
            self._siblings[sibling] = None
        selector.register(sibling, selectors.EVENT_READ)

    def _hear(self, selector: selectors.BaseSelector, sibling: socket.socket) -> None:
        """Handle a sibling's packet: first its rank, then its reports, at last its end."""
        try:
            packet = sibling.recv(MAX_REPORT)
            rank = self._siblings[sibling]
            if rank is not None and packet[:1] == REPORT:
                self.on_report(packet[1:])
                return
            rank = int(packet)
        except (OSError, ValueError):
            selector.unregister(sibling)
            with self._lock:
                del self._siblings[sibling]
            sibling.close()
        else:
            with self._lock:
                self._siblings[sibling] = rank
                _send(sibling, self._state)
        self.changed.set()

    def _tell(self, packet: bytes) -> None:
        for sibling, rank in self._siblings.items():
            if rank is not None:
                _send(sibling, packet)


def take(folder: Path, key: str, rank: int) -> Hub | Line | None:
    """Become the watcher if there is none, else connect to the watcher.

    Args:
        folder: the shared folder of the run's monitors on this machine.
        key: monitors with the same key share a stream.
        rank: rank of the calling monitor.

    Returns:
        None if neither is possible. This monitor then needs its own stream.
    """
    deadline = time.monotonic() + TAKE_SECONDS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with _short(folder) as base:
            while time.monotonic() < deadline:
                found = _become(folder, f"{base}/line-{key}", key) or _connect(f"{base}/line-{key}", rank)
                if found is not None:
                    return found
                time.sleep(RETRY_SECONDS)
    except OSError as error:
        _log.debug("commands are not shared in %s: %s", folder, error)
    return None


def _become(folder: Path, address: str, key: str) -> Hub | None:
    """Become the watcher. None: another monitor is the watcher."""
    lock = os.open(folder / f"watch-{key}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    listener = None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # left by a watcher that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen(MAX_MEMBERS)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    path = folder / f"line-{key}"

    def release() -> None:
        with contextlib.suppress(OSError):
            path.unlink()
        if not has_members(folder):  # the run is over, and this monitor has created its folder again
            with contextlib.suppress(OSError):
                os.unlink(folder / f"watch-{key}")
                folder.rmdir()
        os.close(lock)

    return Hub(listener, release)


def _connect(address: str, rank: int) -> Line | None:
    """Connect to the watcher. None: it does not listen yet, or has just ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(TAKE_SECONDS)
        connection.connect(address)
        if _is_of_same_user(connection):
            connection.send(str(rank).encode())
            if first := connection.recv(MAX_PACKET):
                return Line(connection, first)
    except OSError:
        pass
    connection.close()
    return None


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yield a short path of a folder, so that paths in it fit into the 107 bytes of a socket's address (unix(7))."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _send(connection: socket.socket, packet: bytes) -> bool:
    """Send a packet without waiting. Return False if it was not taken."""
    try:
        return connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(packet)
    except OSError:
        return False


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _is_of_same_user(connection: socket.socket) -> bool:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1]) == os.geteuid()
