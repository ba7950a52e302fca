"""Native stacks (C, C++, Python) of a process, from ``py-spy dump --native``, if py-spy is installed.

py-spy stops the process while it reads the stacks: for 0.1 s with libtorch loaded, for at most `LIMIT_SECONDS`.
``--nonblocking`` would not stop it, but py-spy reads no native stacks in this mode. So native stacks are taken only of
processes that are already stuck. If py-spy ends or is killed, the kernel lets the process continue.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from otel_fr.monitor.process import loader_workers
from otel_fr.monitor.process.state import Process, parse_status
from otel_fr.stacks import NATIVE_HEADING, first_native_thread

LIMIT_SECONDS: Final = 5.0
"""py-spy is killed after this time. It takes 0.4 s with PyTorch for CPUs. Symbols of larger libraries take longer."""
MAX_TEXT: Final = 16 * 1024
"""Most characters of the result: some 300 frames."""
_MAX_OUTPUT: Final = 1 << 20
"""Most bytes of py-spy's output that are read. If there is more, some threads are missing in the result."""
_MAX_ERROR: Final = 300
_NAME: Final = "py-spy"
_STATES: Final = {
    "T": "it is stopped",
    "t": "a debugger has it",
    "Z": "it has ended",
    "X": "it has ended",
    "D": "it waits in the kernel, uninterruptibly",
}
"""States of the main thread in which py-spy could not read the stacks, or would wait forever."""
_BLOCK: Final = re.compile(r"^(?=Thread )", re.MULTILINE)
_OUR_THREAD: Final = re.compile(r'"otel-fr[^"]*"$')
"""Matches otel-fr's own thread, which only waits for requests of the monitor."""
_FRAME: Final = re.compile(r"^( {4}.*)( \(.*\))$")
_MAX_FUNCTION: Final = 200
"""Most characters. A C++ template's name may have thousands."""
_FIRST_TO_DIE: Final = "1000"
"""py-spy's oom_score_adj. If memory runs out while it uses its 100 MB, the kernel kills it and not the rank."""


class Native(NamedTuple):
    """The stacks as ``text``, the rank's thread first. If it is "", ``error`` says why there are none."""

    text: str = ""
    error: str = ""


def executable() -> str | None:
    """Return the path of py-spy, beside this interpreter or in PATH, or None if it is not installed."""
    beside = shutil.which(_NAME, path=str(Path(sys.executable).parent))
    return beside or shutil.which(_NAME)


def take(
    pid: int, command: str | None = None, seconds: float = LIMIT_SECONDS, first: str = "", native: bool = True
) -> Native:
    """Read the native stacks of a process. Waits at most ``seconds``.

    Args:
        command: py-spy's path; None: see `executable`.
        first: name of the thread that comes first, before the main thread.
        native: False for Python frames only.
    """
    command = command or executable()
    if command is None:
        return Native(error=f"{_NAME} is not installed")
    state = parse_status(Process(pid).text("status")).get("State", "")[:1]
    if state in _STATES:
        return Native(error=_STATES[state])
    try:
        process = subprocess.Popen(
            [command, "dump", *(["--native"] if native else []), "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # signals from the terminal to the job must not reach it
        )
    except (OSError, ValueError) as error:
        return Native(error=f"{command}: {error}")
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(_FIRST_TO_DIE)
    return _result_of(process, seconds, first)


def _result_of(process: subprocess.Popen[bytes], seconds: float, first: str) -> Native:
    assert process.stdout is not None
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        raw = process.stdout.read(_MAX_OUTPUT)
        if len(raw) == _MAX_OUTPUT:
            process.kill()
        status = process.wait()
    finally:
        timer.cancel()
        process.stdout.close()
    output = raw.decode("utf-8", "replace")
    if is_late.is_set():
        return Native(error=f"{_NAME} took longer than {seconds:g} s")
    text = stacks_in(output, first)
    if not text or (status != 0 and len(raw) < _MAX_OUTPUT):
        return Native(error=error_in(output) or f"{_NAME} ended with status {status}")
    return Native(text)


def _python(pid: int) -> str:
    """Return the Python stack of a process's main thread; "": unknown."""
    return first_native_thread(take(pid, native=False).text)


def stacks_in(output: str, first: str = "") -> str:
    """Return the stacks in py-spy's output under a heading: the thread ``first``, the main thread, and all others.

    "": there are none.
    """
    threads = [block.rstrip() for block in _BLOCK.split(output)[1:]]
    threads = [block for block in threads if not _OUR_THREAD.search(block.partition("\n")[0])]
    if not threads:
        return ""
    threads.sort(key=lambda block: [f'"{name}"' not in block.partition("\n")[0] for name in (first, "MainThread")])
    lines = "\n".join([NATIVE_HEADING, *threads]).split("\n")
    return "\n".join(_FRAME.sub(_cut, line) for line in lines)[:MAX_TEXT]


def _cut(frame: re.Match[str]) -> str:
    """Return the frame with its function cut to `_MAX_FUNCTION` characters."""
    function, place = frame.groups()
    return f"{function[:_MAX_FUNCTION]}...{place}" if len(function) > _MAX_FUNCTION else frame[0]


def error_in(output: str) -> str:
    """Return py-spy's error message as one line."""
    said = output.partition("Stack backtrace")[0]
    return " ".join(said.split())[:_MAX_ERROR]


class NativeLook:
    """Runs `take` for a rank and its DataLoader workers in a separate thread.

    Attributes:
        result: the result; None: not there yet.
    """

    def __init__(self, pid: int, first: str = "") -> None:
        """``first``: see `take`."""
        self._pid, self._first = pid, first
        self.result: Native | None = None
        threading.Thread(target=self._run, name="otel-fr-native", daemon=True).start()

    def _run(self) -> None:
        try:
            found = take(self._pid, first=self._first)
            workers = loader_workers.texts_of(self._pid, _python) if found.text else ""
            self.result = found._replace(text="\n\n".join(filter(None, (found.text, workers))))
        except Exception as error:  # noqa: BLE001 - the watch loop waits for some result
            self.result = Native(error=f"{type(error).__name__}: {error}")


def outlook() -> str:
    """Return, for ``otel-fr doctor``, whether `take` works here. It is tried on this process instead of a rank."""
    if executable() is None:
        return f"none: {_NAME} is not installed (pip install {_NAME})"
    found = take(os.getpid())
    if found.text:
        return f"{_NAME} reads the stacks of stuck ranks"
    return f"none: {_NAME} may not read other processes here: {found.error}"
