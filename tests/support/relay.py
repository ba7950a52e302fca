"""A TCP relay that tests can cut: connections stay open, but nothing passes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType

_BLOCK = 1 << 16


class Relay:
    """Passes connections on its own port to an address, during a ``with`` block.

    Attributes:
        port: on 127.0.0.1.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_open = threading.Event()
        self._is_open.set()
        self._lost: list[threading.Event] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for is_open in (self._is_open, *self._lost):
            is_open.set()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self, seconds: float) -> None:
        """Cut the network for so many seconds, and return when it works again."""
        self.stop()
        time.sleep(seconds)
        self.go_on()

    def stop(self) -> None:
        """Let nothing pass from now on."""
        self._is_open.clear()

    def go_on(self) -> None:
        self._is_open.set()

    def lose(self) -> None:
        """Let nothing pass on existing connections. Their ends do not notice. Later connections work."""
        self._is_open.clear()
        self._lost.append(self._is_open)
        self._is_open = threading.Event()
        self._is_open.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink, self._is_open), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_open: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BLOCK):
                is_open.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
