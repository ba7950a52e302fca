"""Runs each task in a separate process with a time limit.

A process that waits for a file system may be in uninterruptible sleep, and SIGKILL does not end it. So this module
never waits long for a process: it kills the process, and leaves it to the kernel if it does not end.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_fr.checks.model import ARGUMENTS_VARIABLE, Outcome, Result, Status, Task
from otel_fr.helper_process import helper_environment, python_command

_CHILD: Final = "otel_fr.checks.child"
MAX_AT_ONCE: Final = 16
"""Largest number of processes at a time. Most of them only wait."""
MAX_OUTPUT: Final = 64 << 10
"""Most bytes that are read from a process's output."""
_END_SECONDS: Final = 0.2
"""Longest wait for the end of a process that was killed or has printed everything. It usually takes milliseconds."""
_LATER: Final = 5.0
"""A process that nobody has killed ends itself this many seconds after its limit."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Processes that could not be killed. They are kept so that they can be reaped once they end."""


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    begun: float
    output: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> float:
        return self.begun + self.task.limit


def run(tasks: Sequence[Task], env: Mapping[str, str] = os.environ) -> list[Result]:
    """Run the tasks, some at a time. Takes little longer than the longest limit, unless there are very many tasks.

    Returns:
        a result for each task, in the same order.
    """
    _reap()
    results: dict[int, Result] = {}
    waiting = list(range(len(tasks)))[::-1]
    running: dict[int, _Running] = {}
    environment = _environment(env)
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < MAX_AT_ONCE:
                    index = waiting.pop()
                    started = _start(tasks[index], environment)
                    if isinstance(started, Result):
                        results[index] = started
                        continue
                    running[index] = started
                    assert started.process.stdout is not None
                    selector.register(started.process.stdout, selectors.EVENT_READ, index)
                if not running:
                    continue
                nearest = min(one.end for one in running.values())
                ready = {key.data for key, _ in selector.select(max(0.0, nearest - time.monotonic()))}
                for index, one in list(running.items()):
                    is_over = index in ready and not _read(one)
                    if is_over or time.monotonic() >= one.end:
                        selector.unregister(one.process.stdout)  # type: ignore[arg-type]
                        del running[index]
                        results[index] = _finish(one, is_over=is_over)
        finally:
            for one in running.values():
                _end(one.process)
    return [results[index] for index in range(len(tasks))]


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of helper processes, with absolute paths: the processes start in /, because the working
    directory may be on a file system that does not answer."""
    found = helper_environment(env)
    found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, found["PYTHONPATH"].split(os.pathsep)))
    return found


def _start(task: Task, env: Mapping[str, str]) -> _Running | Result:
    arguments = [task.kind, str(task.limit + _LATER), str(os.getpid())]
    try:
        # The process inherits no descriptors: one that cannot be killed would keep, for example, a log's pipe open.
        process = subprocess.Popen(
            [*python_command(_CHILD), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**env, ARGUMENTS_VARIABLE: json.dumps(task.arguments)},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return _result(task, Outcome(Status.FAILED, f"cannot start a process: {error.strerror}"), 0.0)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return _Running(task, process, time.monotonic())


def _read(one: _Running) -> bool:
    """Read output of the process. Return False if it will print no more."""
    assert one.process.stdout is not None
    try:
        data = os.read(one.process.stdout.fileno(), MAX_OUTPUT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    one.output += data[: MAX_OUTPUT - len(one.output)]
    return bool(data)


def _finish(one: _Running, *, is_over: bool) -> Result:
    seconds = time.monotonic() - one.begun
    if is_over:
        _end(one.process, patient=True)
        outcome = _outcome(bytes(one.output), one.process.returncode)
    else:
        outcome = Outcome(Status.FAILED, f"no answer in {one.task.limit:g} s{_where(one.process.pid)}")
        _end(one.process)
    return _result(one.task, outcome, seconds)


def _result(task: Task, outcome: Outcome, seconds: float) -> Result:
    status = outcome.status
    if status is Status.FAILED and task.is_advisory:
        status = Status.WARNING
    return Result(task.kind, task.target, status, outcome.text, seconds)


def _outcome(output: bytes, status: int | None) -> Outcome:
    try:
        name, text = json.loads(output)
        return Outcome(Status(name), str(text))
    except (ValueError, TypeError):
        return Outcome(Status.FAILED, f"the check's process ended without an answer (status {status})")


def _where(pid: int) -> str:
    """Return what the kernel shows of a hanging process, such as the kernel function in which it sleeps (proc(5))."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        function = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    except (OSError, IndexError):
        return ""
    words = ["in uninterruptible sleep"] if state == "D" else []
    words += [f"it waits in the kernel's {function}"] if function else []
    return f" ({', '.join(words)})" if words else ""


def _end(process: subprocess.Popen[bytes], *, patient: bool = False) -> None:
    """End the process, if this is possible at once. ``patient``: first wait, because it is about to end on its own."""
    if process.stdout is not None:
        process.stdout.close()
    if patient and _ended(process):
        return
    with contextlib.suppress(OSError):
        process.kill()
    if not _ended(process):
        _left_behind.append(process)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _reap() -> None:
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]
