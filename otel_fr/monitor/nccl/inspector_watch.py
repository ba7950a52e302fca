"""Follows the file that NCCL Inspector writes for the rank (`otel_fr.dumps.nccl_inspector`), as it grows."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from otel_fr.dumps.nccl_inspector import DeviceCall, LineReader, file_name

_log = logging.getLogger("otel_fr.monitor")

SECONDS: Final = 1.0
"""Time between two looks."""
LOOK_SECONDS: Final = 0.5
"""How long a step waits for its look. The file may be on a file server that does not answer."""
STEP_BYTES: Final = 512 << 10
"""Most bytes read in one look: 1,000 to 2,500 calls, which take at most 25 ms of CPU time."""
MAX_BEHIND: Final = 8 << 20
"""How many bytes the reader may be behind before it skips some."""
_MAX_PARTIAL: Final = 1 << 20
_ON: Final = re.compile(r"\s*[+-]?0*[1-9]")
"""Matches a text that C's ``atoi`` converts to a number other than 0."""
_OTHER_OUTPUTS: Final = ("NCCL_INSPECTOR_PROM_DUMP", "NCCL_INSPECTOR_OTEL_EXPORT")


def inspector_file(env: Mapping[str, str], pid: int) -> Path | None:
    """Return the file of a process of this host. None: its environment requests no JSON file.

    A relative folder is relative to the process's working directory. Source: genDumpDir and inspectorGlobalInit in NCCL
    Inspector's inspector.cc.
    """

    def is_set(name: str) -> bool:
        return _ON.match(env.get(name, "")) is not None

    if not is_set("NCCL_INSPECTOR_ENABLE") or any(map(is_set, _OTHER_OUTPUTS)):
        return None
    folder = env.get("NCCL_INSPECTOR_DUMP_DIR", "")
    if not folder:
        folder = f"nccl-inspector-{env.get('SLURM_JOBID') or env.get('SLURM_JOB_ID') or 'unknown-jobid'}"
    return Path(f"/proc/{pid}/cwd", folder, file_name(socket.gethostname(), pid))


class InspectorWatch:
    """Reads new lines of one file in a thread. A step never raises, and reads at most `STEP_BYTES`.

    Args:
        path: the file, which need not exist yet; None: there is no file to follow.
        take: called with each call.
    """

    def __init__(self, path: Path | None, take: Callable[[DeviceCall], None]) -> None:
        self._path = path
        self._take = take
        self._file: BinaryIO | None = None
        self._inode = 0
        self._reader = LineReader()
        self._partial = b""
        self._look_at = 0.0
        self._thread: threading.Thread | None = None
        self._found: list[DeviceCall] = []

    def step(self, now: float, *, at_once: bool = False) -> None:
        """Read new lines, once a second.

        Args:
            now: monotonic seconds.
            at_once: read now, however recent the last look was.
        """
        is_late = self._thread is not None and self._thread.is_alive()
        if self._path is None or is_late or (now < self._look_at and not at_once):
            return
        self._look_at = now + SECONDS
        self._thread = threading.Thread(target=self._look, args=(self._path,), name="otel-fr-inspector", daemon=True)
        self._thread.start()
        self._thread.join(LOOK_SECONDS)
        if not self._thread.is_alive():
            found, self._found = self._found, []
            for call in found:
                self._take(call)

    def _look(self, path: Path) -> None:
        try:
            self._read(path)
        except OSError as error:
            _log.info("stopped reading the file of NCCL Inspector: %s", error)
            self.close()
            self._path = None

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _read(self, path: Path) -> None:
        try:
            about = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if self._file is None:
                return
            about = os.fstat(self._file.fileno())  # it was moved away, or the rank has ended: read the last lines
        file = self._file
        if file is None or about.st_ino != self._inode or about.st_size < file.tell():
            self.close()
            file = self._file = _open(path)
            self._inode, self._partial, self._reader = about.st_ino, b"", LineReader()
        behind = about.st_size - file.tell()
        if behind > MAX_BEHIND:
            file.seek(behind - STEP_BYTES, os.SEEK_CUR)
            self._reader.forget()
            self._partial = b""
            file.readline(_MAX_PARTIAL)  # the rest of a line that began in the skipped part
        data = self._partial + file.read(STEP_BYTES)
        *lines, self._partial = data.split(b"\n")
        if len(self._partial) > _MAX_PARTIAL:
            self._partial = b""
        for line in lines:
            call = self._reader.read(line)
            if call is not None:
                self._found.append(call)


def _open(path: Path) -> BinaryIO:
    """Open the rank's file. Its name is predictable, so in a shared folder another user may have created it.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or belongs to another user.
    """
    # O_NONBLOCK: opening a pipe of that name must not block. It has no effect on a file.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is not a regular file")
        if about.st_uid != os.geteuid():
            raise OSError(f"it belongs to user {about.st_uid}")
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise
