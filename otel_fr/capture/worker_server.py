"""torch's C++ worker server, on a Unix socket of this rank's own, so that its monitor can ask PyTorch's recorder.

It answers from threads of C++, also while the GIL is held, and costs the training thread nothing once it is started.
A server that the program starts itself (``torch.distributed.debug``, ``TORCH_WORKER_SERVER_SOCKET``) is another one:
several may run in a process.
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

from otel_fr.ring import private_folder
from otel_fr.torch_recorder import is_of_device

_LONGEST: Final = 107
"""Bytes of a Unix socket's path (sockaddr_un has 108 with the final zero)."""
_SUFFIX: Final = ".recorder"
_ERROR: Final = 2
"""c10's log level: warnings are not logged."""


def is_wanted(capture: str, backends: Iterable[str]) -> bool:
    """True if PyTorch's recorder must be read for a group.

    Args:
        capture: `otel_fr.config.Config.capture`. backends: of the group, by torch's names.
    """
    return capture == "auto" and any(map(is_of_device, backends))


class WorkerServer:
    """A server that runs.

    Attributes:
        path: of its socket, mode 0600 in a folder of mode 0700.
    """

    def __init__(self, torch: ModuleType, ring: Path) -> None:
        """Start it.

        Args:
            ring: the socket lies beside it, or in the temporary folder if its path would be too long.

        Raises:
            AttributeError, OSError, RuntimeError: this torch has none, or the socket cannot be made.
        """
        make = torch._C._distributed_c10d._WorkerServer
        self.path = _path_beside(ring)
        self.path.unlink(missing_ok=True)
        self._torch = torch
        with _without_warnings(torch):
            self._server: Any = make(str(self.path))
        self.path.chmod(0o600)

    def close(self, is_idle: bool) -> None:
        """Let nobody connect any more and, if no request is being answered, end the threads.

        Args:
            is_idle: False: a request may be stuck in a driver that does not answer, and to end the threads would wait
                for it. They are left to the end of the process.
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
            _keep_for_ever(server)

    def abandon(self) -> None:
        """In a forked child, which has none of the threads: never run the destructor, which would wait for them."""
        server, self._server = self._server, None
        if server is not None:
            _keep_for_ever(server)


def _keep_for_ever(server: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _path_beside(ring: Path) -> Path:
    path = ring.with_name(ring.name + _SUFFIX)
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    return private_folder(Path(tempfile.gettempdir())) / path.name


@contextlib.contextmanager
def _without_warnings(torch: ModuleType) -> Iterator[None]:
    """torch's C++ warns that it starts and ends the server, as it does nothing else of a program's (WorkerServer.cpp).

    Its log level is a variable of libc10; where that is not found, the warnings are seen.
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
