"""Native stacks (C, C++, Python) of a process, by ``py-spy dump --native``, where py-spy is installed.

py-spy stops the process while it reads the stacks: 0.1 s where libtorch is loaded, `LIMIT_SECONDS` at most.
``--nonblocking`` would not, but py-spy refuses to read native stacks that way. So this is for processes that are stuck
anyway. If py-spy ends or is killed, the kernel lets the process run on.
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
"""After this py-spy is killed. It takes 0.4 s with PyTorch for CPUs; symbols of larger libraries take longer."""
MAX_TEXT: Final = 16 * 1024
"""Characters of the result: some 300 frames."""
_MAX_OUTPUT: Final = 1 << 20
"""Bytes of py-spy's output that are read; a process with more threads has a part of them in the result."""
_MAX_ERROR: Final = 300
_NAME: Final = "py-spy"
_STATES: Final = {
    "T": "it is stopped",
    "t": "a debugger has it",
    "Z": "it has ended",
    "X": "it has ended",
    "D": "it waits in the kernel, uninterruptibly",
}
"""Of the main thread: py-spy could not read the stacks, or wait for ever."""
_BLOCK: Final = re.compile(r"^(?=Thread )", re.MULTILINE)
_OUR_THREAD: Final = re.compile(r'"otel-fr[^"]*"$')
"""It only waits for what the monitor asks."""
_FRAME: Final = re.compile(r"^( {4}.*)( \(.*\))$")
_MAX_FUNCTION: Final = 200
"""Characters; a template of C++ may have thousands."""
_FIRST_TO_DIE: Final = "1000"
"""py-spy's oom_score_adj: if memory runs out while it has its 100 MB, the kernel ends it and not the rank."""


class Native(NamedTuple):
    """``text``: the stacks, the rank's thread first; "": there are none, and ``error`` says why."""

    text: str = ""
    error: str = ""


def executable() -> str | None:
    """py-spy beside this interpreter, or in PATH; None: it is not installed."""
    beside = shutil.which(_NAME, path=str(Path(sys.executable).parent))
    return beside or shutil.which(_NAME)


def take(
    pid: int, command: str | None = None, seconds: float = LIMIT_SECONDS, first: str = "", native: bool = True
) -> Native:
    """Read the native stacks of a process; this waits ``seconds`` at most.

    Args:
        command: py-spy's path; None: where it is found.
        first: name of the thread that comes first, before the main thread.
        native: False: only those of Python.
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
            start_new_session=True,  # what the terminal sends to the job is not for it
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
    """The main thread of a process, in Python; "": not known."""
    return first_native_thread(take(pid, native=False).text)


def stacks_in(output: str, first: str = "") -> str:
    """The stacks in py-spy's output under a heading, the thread ``first`` and then the main thread first; "": none."""
    threads = [block.rstrip() for block in _BLOCK.split(output)[1:]]
    threads = [block for block in threads if not _OUR_THREAD.search(block.partition("\n")[0])]
    if not threads:
        return ""
    threads.sort(key=lambda block: [f'"{name}"' not in block.partition("\n")[0] for name in (first, "MainThread")])
    lines = "\n".join([NATIVE_HEADING, *threads]).split("\n")
    return "\n".join(_FRAME.sub(_cut, line) for line in lines)[:MAX_TEXT]


def _cut(frame: re.Match[str]) -> str:
    """The frame, its function with at most `_MAX_FUNCTION` characters."""
    function, place = frame.groups()
    return f"{function[:_MAX_FUNCTION]}...{place}" if len(function) > _MAX_FUNCTION else frame[0]


def error_in(output: str) -> str:
    """What py-spy says of why it failed, as one line."""
    said = output.partition("Stack backtrace")[0]
    return " ".join(said.split())[:_MAX_ERROR]


class NativeLook:
    """A `take` of a rank and of its DataLoader workers, in a thread of its own.

    Attributes:
        result: None: not known yet.
    """

    def __init__(self, pid: int, first: str = "") -> None:
        """``first``: as in `take`."""
        self._pid, self._first = pid, first
        self.result: Native | None = None
        threading.Thread(target=self._run, name="otel-fr-native", daemon=True).start()

    def _run(self) -> None:
        try:
            found = take(self._pid, first=self._first)
            workers = loader_workers.texts_of(self._pid, _python) if found.text else ""
            self.result = found._replace(text="\n\n".join(filter(None, (found.text, workers))))
        except Exception as error:  # noqa: BLE001 - the watch waits for a result, whatever it is
            self.result = Native(error=f"{type(error).__name__}: {error}")


def outlook() -> str:
    """What `take` can do here, for ``otel-fr doctor``: tried on this process, which py-spy reads as it does a rank."""
    if executable() is None:
        return f"none: {_NAME} is not installed (pip install {_NAME})"
    found = take(os.getpid())
    if found.text:
        return f"{_NAME} reads the stacks of stuck ranks"
    return f"none: {_NAME} may not read other processes here: {found.error}"
