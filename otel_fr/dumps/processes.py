"""Reads files in processes of their own, so that no file can cost the caller more than a bounded time and memory.

A pickle of some hundred bytes can contain a key whose hash takes years to compute, or nested lists that take gigabytes
to walk. No check finds all of these cheaply, so there is none. Instead, a process reads the files one after the other,
with limits that the system enforces. If it reaches a limit, or a file ends it in another way, the file is reported,
and another process continues with the next file.
"""

from __future__ import annotations

import contextlib
import copyreg
import faulthandler
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NoReturn

from otel_fr.dumps.safe_parse import MIB, TOO_DEEP, Limits, UnreadableDump
from otel_fr.helper_process import end_with

SECONDS_PER_BYTE: Final = 1.0 / MIB
"""CPU time for one file beyond `Limits.seconds`. A recorder's file takes about 0.05 s per MiB."""
MEMORY: Final = 256 * MIB
MEMORY_PER_BYTE: Final = 32
MAX_MEMORY: Final = 4096 * MIB
"""Memory for one file. A recorder's file takes about 10 times its size."""
ANSWER: Final = 16 * MIB
ANSWER_PER_BYTE: Final = 2
"""Most bytes that the process sends back for one file. For a recorder's file, it sends fewer than the file has."""

Work = Callable[[Path, Callable[[int], None]], Any]
"""Reads a file. Its arguments are the path, and a function that it must call with the file's size in bytes as soon as
the size is known. The limits hold from then on. The `Work` and its result must be picklable."""

_CODE: Final = (
    "import sys; sys.path[:] = {path!r}; from multiprocessing.connection import Connection;"
    " from otel_fr.dumps.processes import serve; serve(Connection(0))"
)


def read_all(
    work: Work, limits: Limits, paths: Sequence[Path], count: int
) -> Iterator[tuple[Path, Any | UnreadableDump]]:
    """Yield the result of ``work`` for each file, or why there is none, in the order of completion.

    Args:
        count: number of processes that share the files.
    """
    waiting = list(reversed(paths))
    idle = [_Reader(work, limits) for _ in range(min(count, len(paths)))]
    busy: dict[Connection, _Reader] = {}
    try:
        while waiting or busy:
            while waiting and idle:
                reader = idle.pop()
                try:
                    busy[reader.begin(waiting[-1])] = reader
                except OSError as error:
                    idle.append(reader)
                    yield waiting[-1], UnreadableDump(f"cannot start a process to read it: {error.strerror}")
                waiting.pop()
            for connection in wait(list(busy)) if busy else ():
                reader = busy.pop(connection)  # type: ignore[call-overload]
                idle.append(reader)
                yield reader.path, reader.answer()
    finally:
        for reader in (*idle, *busy.values()):
            reader.end()


class _Reader:
    """One process. It is started when there is a file for it, and again after it has died."""

    def __init__(self, work: Work, limits: Limits) -> None:
        self._task = work, limits
        self._pid = 0
        self._connection: Connection
        self.path = Path()

    def begin(self, path: Path) -> Connection:
        """Begin with a file. The returned connection becomes readable when there is an answer.

        Raises:
            OSError: no process can be started.
        """
        self.path = path
        try:
            self._send(path)
        except OSError:  # it has died since its last answer
            self.end()
            self._send(path)
        return self._connection

    def _send(self, path: Path) -> None:
        if not self._pid:
            ours, theirs = multiprocessing.Pipe()
            try:
                self._pid = _start(ours, theirs)
            except OSError:
                ours.close()
                raise
            finally:
                theirs.close()
            self._connection = ours
            ours.send(self._task)
        self._connection.send(path)

    def answer(self) -> Any | UnreadableDump:
        """Wait for the result of the file."""
        try:
            # Our own program wrote this, and it builds only plain values from a file.
            return pickle.loads(self._connection.recv_bytes())  # noqa: S301
        except (EOFError, OSError):
            return UnreadableDump(_death(self._wait()))

    def end(self) -> None:
        """End the process, if there is one."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):  # it has died, and the program ignores SIGCHLD
                os.kill(self._pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        """Wait for the end of the process. Return its exit status; negative: a signal."""
        pid, self._pid = self._pid, 0
        self._connection.close()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:  # the program ignores SIGCHLD
            return 0


def _start(ours: Connection, theirs: Connection) -> int:
    """Start the process. Forking is faster, but safe only if no other thread can hold a lock. Else start Python."""
    if threading.active_count() == 1:
        program = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Only after a fork: `end_with` watches the parent's thread, and here the parent has only one.
            if not end_with(program):
                os._exit(0)
            serve(theirs, ours)
        return pid
    path = [*filter(None, sys.path), str(Path(__file__).parents[2])]
    # Isolated mode: the current folder may contain any modules.
    command = [sys.executable, "-I", "-c", _CODE.format(path=path)]
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)])


def _death(status: int) -> str:
    if status == -signal.SIGPROF:
        return "takes far longer to read than a flight recorder's file of its size: do not load it"
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"the process that read it ended ({how}): the file is damaged or built to do harm, or memory ran out"


def serve(connection: Connection, *others: Connection) -> NoReturn:
    """Run the process: read each file whose path arrives, and send back a pickle of the result.

    Args:
        others: connections of the program, which are closed here.
    """
    try:
        for other in others:
            other.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGTERM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program ends this process
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        copyreg.clear_extension_cache()  # a pickle can refer to cached objects by a number
        gc.disable()  # all values live until they are sent back
        gc.freeze()
        work, limits = connection.recv()
        while True:
            connection.send_bytes(_answer(work, limits, connection.recv()))
            gc.collect()
    except (EOFError, OSError):  # the program has ended
        os._exit(0)
    except BaseException:  # noqa: BLE001  an error of ours: the file is not read
        traceback.print_exc()
    os._exit(1)


def _answer(work: Work, limits: Limits, path: Path) -> bytes:
    with _Bounds(limits.seconds) as bounds:
        try:
            data = pickle.dumps(work(path, bounds.set), pickle.HIGHEST_PROTOCOL)
            if len(data) <= bounds.answer:
                return data
            problem = UnreadableDump("holds far more than a flight recorder's file of its size: do not load it")
        except UnreadableDump as error:
            problem = UnreadableDump(str(error))
        except RecursionError:
            problem = UnreadableDump(TOO_DEEP)
        except MemoryError:
            problem = UnreadableDump(
                "takes far more memory than a flight recorder's file of its size, or does not fit into memory:"
                " do not load it, or record fewer entries"
            )
    return pickle.dumps(problem)


class _Bounds:
    """The limits of this process. They end with the context."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        self.answer = ANSWER

    def set(self, size: int) -> None:
        """Set the limits for a file of this many bytes. At the time limit, SIGPROF ends the process."""
        self.answer = ANSWER + size * ANSWER_PER_BYTE
        signal.setitimer(signal.ITIMER_PROF, self._seconds + size * SECONDS_PER_BYTE)
        now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        most = now + min(MEMORY + size * MEMORY_PER_BYTE, MAX_MEMORY)
        known = [limit for limit in self._before if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *known]), self._before[1]))

    def __enter__(self) -> _Bounds:
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, self._before)
