"""Runs torch's C++ worker server on a Unix socket of this rank, so that the monitor can ask PyTorch's recorder.

The server answers from C++ threads, even while the GIL is held. Once it is started, it costs the training thread
nothing. The program may start other servers in the same process (``torch.distributed.debug``,
``TORCH_WORKER_SERVER_SOCKET``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from otel_fr.capture.completion import keep_for_ever
from otel_fr.ring import private_folder
from otel_fr.torch_recorder import is_of_device

_LONGEST: Final = 107
"""Most bytes of a Unix socket's path (sockaddr_un has 108 with the final zero)."""
_SUFFIX: Final = ".recorder"
_ERROR: Final = 2
"""c10's log level: warnings are not logged."""


def is_wanted(capture: str, backends: Iterable[str]) -> bool:
    """Return True if PyTorch's recorder must be read for a group.

    Args:
        capture: `otel_fr.config.Config.capture`.
        backends: torch's names of the group's backends.
    """
    return capture == "auto" and any(map(is_of_device, backends))


class WorkerServer:
    """A running server.

    Attributes:
        path: path of the socket, which has mode 0600 in a folder of mode 0700.
    """

    def __init__(self, torch: ModuleType, ring: Path) -> None:
        """Start the server.

        Args:
            ring: the socket is created beside this file, or in the temporary folder if the path would be too long.

        Raises:
            AttributeError, OSError, RuntimeError: this torch has no server, or the socket cannot be created.
        """
        make = torch._C._distributed_c10d._WorkerServer
        self.path = _path_beside(ring)
        self.path.unlink(missing_ok=True)
        self._torch = torch
        with _without_warnings(torch):
            self._server: Any = make(str(self.path))
        self.path.chmod(0o600)

    def close(self, is_idle: bool) -> None:
        """Remove the socket, so that nobody can connect. If no request is being answered, also end the threads.

        Args:
            is_idle: False if a request may be stuck in a driver that does not answer. Ending the threads would wait for
                it, so they stay until the process ends.
        """
        server, self._server = self._server, None
        if server is None:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        if is_idle:
            with _without_warnings(self._torch):
                server.shutdown()
        else:
            keep_for_ever(server)

    def abandon(self) -> None:
        """In a forked child, never run the destructor: it would wait for threads that the child does not have."""
        server, self._server = self._server, None
        if server is not None:
            keep_for_ever(server)


def _path_beside(ring: Path) -> Path:
    path = ring.with_name(ring.name + _SUFFIX)
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    return private_folder(Path(tempfile.gettempdir())) / path.name


@contextlib.contextmanager
def _without_warnings(torch: ModuleType) -> Iterator[None]:
    """Suppress the warnings that torch's C++ code logs when the server starts and ends (WorkerServer.cpp).

    The log level is a variable of libc10. If it cannot be found, the warnings are logged.
    """
    level = None
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(
            str(Path(str(torch.__file__)).parent / "lib" / "libc10.so"), mode=os.RTLD_NOW | os.RTLD_NOLOAD
        )
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    before = 0 if level is None else level.value
    if level is not None:
        level.value = max(before, _ERROR)
    try:
        yield
    finally:
        if level is not None:
            level.value = before
