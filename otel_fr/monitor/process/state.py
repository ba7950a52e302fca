"""Describes, from ``/proc``, why a process does not continue: it is stopped, or in a system call for a file or socket.

Files that may not be read are left out. With the Yama security module's ``ptrace_scope`` of 1 or more, only privileged
users may read system calls. Then only the kernel function in which the thread waits (``wchan``) is known.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from otel_fr.monitor.process.connections import NO_CONNECTIONS, Connections, connections_of, find_socket
from otel_fr.monitor.process.system_calls import MEANINGS, Meaning, name_of
from otel_fr.monitor.process.tcp_sockets import SYN_SENT, read_sockets

SAMPLE_SECONDS: Final = 0.1
"""Time between two looks at a thread. A thread that has not run in between has waited since the first look."""
LOOK_SECONDS: Final = 1.0
"""How long the stacks wait for the result."""
MAX_TEXT: Final = 400
"""Most characters of the result."""
MAX_THREADS: Final = 512
"""How many threads are examined to find one that runs while the main thread waits."""
_MAX_PATH: Final = 200
_MAX_FILE: Final = 8 << 20
"""Most bytes that are read of a file."""
_MAX_FILES: Final = 16_384
"""How many open files of a process are examined to find its sockets."""
_MAX_POLLED: Final = 16
_SOCKET: Final = "socket:["
_FREEZER: Final = ("freezer", "refrigerator", "get_signal")
"""Parts of the names of functions in which a frozen process waits. Linux 6.18 inlines ``do_freezer_trap`` in the last.
"""
_ENDED: Final = {"Z": "a zombie: its parent has not waited for it", "X": "dead"}
_REMOTE: Final = ("nfs", "fuse", "lustre", "ceph", "cifs", "smb", "9p", "gpfs", "beegfs", "gluster", "afs")
"""Types of file systems, or prefixes of types, for which the text names the server."""
_SLOW: Final = ("nfs", "rpc_", "fuse", "ceph", "cifs", "smb2", "ptlrpc", "p9_", "folio_wait", "io_schedule")
"""Parts of the names of kernel functions in which a thread waits for a file system or its disk."""


class SystemCall(NamedTuple):
    """A system call. ``number`` is -1 if the thread is in the kernel but in no system call, as after a page fault."""

    number: int
    arguments: tuple[int, ...] = ()


class Sample(NamedTuple):
    """One look at one thread.

    Attributes:
        state: the letter in ``/proc/PID/stat``; "": unknown.
        wchan: the kernel function in which the thread waits; "": unknown.
        call: the system call; None: the thread runs, or the call may not be read.
        switches: how often the thread has left a CPU; None: unknown.
        ran: nanoseconds on a CPU, as text; "": unknown.
    """

    state: str = ""
    wchan: str = ""
    call: SystemCall | None = None
    switches: int | None = None
    ran: str = ""


def parse_call(text: str) -> SystemCall | None:
    """Parse ``/proc/PID/syscall``. None for a running thread."""
    parts = text.split()
    try:
        number = int(parts[0])
        return SystemCall(number, tuple(int(part, 16) for part in parts[1:7]) if number >= 0 else ())
    except (ValueError, IndexError):
        return None


def parse_status(text: str) -> dict[str, str]:
    """Parse ``/proc/PID/status``: name -> value."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    """Return type and source of the file system that holds a path (``/proc/PID/mountinfo``); "" if unknown."""
    found, length = ("", ""), -1
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= length:
            found, length = (kind[0], kind[1]), len(point)
    return found


class Process:
    """Reads what ``/proc`` shows of one process. ``root`` replaces ``/proc``."""

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self.pid = pid
        self._root = root
        self._folder = root / str(pid)

    def text(self, name: str) -> str:
        """Return the text of a file; "" if it cannot be read."""
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(_MAX_FILE).decode("utf-8", "replace")
        except OSError:
            return ""

    def waits_in(self, thread: str = "") -> str:
        """Return the kernel function in which a thread waits, without the compiler's suffix (``.constprop.0``), or "".

        Args:
            thread: the thread's folder, with a slash; "" for the main thread.
        """
        return self.text(f"{thread}wchan").strip().strip("0").partition(".")[0]

    def sample(self, tid: int) -> Sample:
        """Look at one thread."""
        folder = f"task/{tid}"
        status = parse_status(self.text(f"{folder}/status"))
        switches = [status.get(f"{kind}_ctxt_switches", "") for kind in ("voluntary", "nonvoluntary")]
        return Sample(
            state=status.get("State", "")[:1],
            wchan=self.waits_in(f"{folder}/"),
            call=parse_call(self.text(f"{folder}/syscall")),
            switches=sum(map(int, switches)) if all(map(str.isdigit, switches)) else None,
            ran=self.text(f"{folder}/schedstat").partition(" ")[0],
        )

    def threads(self) -> Iterator[int]:
        """Yield the ids of the threads, without the main thread."""
        with contextlib.suppress(OSError):
            ids = sorted(int(name) for name in os.listdir(self._folder / "task") if name.isdigit())
            yield from [tid for tid in ids if tid != self.pid][:MAX_THREADS]

    def runs(self, tid: int) -> bool:
        """Return True if a thread runs or waits for a CPU."""
        return self.text(f"task/{tid}/stat").rpartition(")")[2].split()[:1] == ["R"]

    def catches(self, number: int) -> bool:
        """Return True if the process has a handler for a signal; False if it has none or this is unknown."""
        try:
            return bool(int(parse_status(self.text("status"))["SigCgt"], 16) >> number - 1 & 1)
        except (KeyError, ValueError):
            return False

    def is_read_here(self) -> bool:
        """Return True if the monitor's child traces the process: py-spy stops it while reading its stacks."""
        tracer = parse_status(self.text("status")).get("TracerPid", "0")
        if not tracer.isdigit() or tracer == "0":
            return False
        return parse_status(Process(int(tracer), self._root).text("status")).get("PPid") == str(os.getpid())

    def name_of(self, pid: int) -> str:
        """Return the command of another process, or "" if it is unknown."""
        return Process(pid, self._root).text("comm").strip()

    def memory(self, address: int, size: int) -> bytes:
        """Return bytes of the process's memory: fewer at the end of a mapping, none if it may not be read."""
        try:
            fd = os.open(self._folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, size, address)
        except (OSError, OverflowError):
            return b""
        finally:
            os.close(fd)

    def path_at(self, address: int) -> str:
        """Return the path at an address, joined with the process's working directory; "" if unknown."""
        page = 4096
        raw = self.memory(address, page - address % page)  # up to the end of the page: the next may not be mapped
        if b"\0" not in raw:
            raw += self.memory(address + len(raw), page)
        path = raw.partition(b"\0")[0].decode("utf-8", "replace")
        return os.path.join(self.link("cwd"), path) if path and b"\0" in raw else ""

    def link(self, name: str) -> str:
        """Return the target of a symbolic link, without accessing the target; "" if unknown."""
        try:
            return os.fsencode(os.readlink(self._folder / name)).decode("utf-8", "replace")
        except OSError:
            return ""

    def socket_inodes(self) -> set[str]:
        """Return the inodes of the process's sockets."""
        files: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self._folder / "fd") as entries:
            files = [self.link(f"fd/{entry.name}") for entry in islice(entries, _MAX_FILES)]
        return {target[len(_SOCKET) : -1] for target in files if target.startswith(_SOCKET)}

    def connections(self) -> Connections:
        """Return the process's present TCP connections."""
        inodes = self.socket_inodes()
        return connections_of(read_sockets(), inodes) if inodes else NO_CONNECTIONS


def describe(process: Process, before: Sample, after: Sample) -> str:
    """Describe what a process is doing, from two looks at a thread: ``"reading /data/x.bin (pipe_read)"``.

    Returns:
        A text that can follow "it is"; "" if nothing is known.
    """
    if after.state in ("T", "t"):
        return _describe_stop(process, after.state)
    if after.state in _ENDED:
        return _ENDED[after.state]
    if any(part in after.wchan for part in _FREEZER):
        return "frozen by its cgroup"
    if before.state == after.state == "R":
        return "running on a CPU" + (", or waiting for one" if after.ran and after.ran == before.ran else "")
    if after.call is None and not after.wchan:
        return "in an uninterruptible wait in the kernel" if before.state == after.state == "D" else ""
    has_waited = after.switches is not None and after.switches == before.switches and after.state in "DS"
    return _describe_wait(process, after, has_waited)[:MAX_TEXT]


def _describe_stop(process: Process, state: str) -> str:
    status = parse_status(process.text("status"))
    if status.get("State", "")[:1] not in ("T", "t") or process.is_read_here():
        return ""  # the process continues already, or will soon
    tracer = status.get("TracerPid", "0")
    if tracer.isdigit() and int(tracer):
        name = process.name_of(int(tracer))
        return f"stopped by a debugger (process {tracer}{f', {name}' if name else ''})"
    # Without a terminal, the kernel sends no SIGTSTP, SIGTTIN or SIGTTOU.
    terminal = process.text("stat").rpartition(")")[2].split()[4:5]
    return "stopped by a signal (SIGSTOP)" if terminal == ["0"] or state == "t" else "stopped by a signal"


def _describe_wait(process: Process, sample: Sample, has_waited: bool) -> str:
    call = sample.call
    name = name_of(call.number) if call is not None else ""
    notes = [sample.wchan] if sample.wchan else []
    if call is not None and call.number == -1:
        doing, path = "waiting for a page of its memory", ""
    elif name in MEANINGS and call is not None:
        doing, path = _describe_call(process, MEANINGS[name], call)
        if name == "futex":
            notes = []
    else:
        doing, path = f"in the kernel{f' (system call {call.number})' if call is not None else ''}", ""
    is_slow = sample.state == "D" or any(part in sample.wchan for part in _SLOW)
    if has_waited and is_slow and (path or (call is not None and call.number == -1)):
        notes.insert(0, "the file system does not answer")
    elif sample.state == "D":
        notes.insert(0, "uninterruptible")
    if path:
        kind, source = mount_of(process.text("mountinfo"), path)
        if kind.startswith(_REMOTE):
            doing += f" on {kind} {source[:_MAX_PATH]}"
    return f"{doing} ({'; '.join(notes)})" if notes else doing


def _describe_call(process: Process, meaning: Meaning, call: SystemCall) -> tuple[str, str]:
    """Return what a thread in the call is doing, and the path of the file, if there is one."""
    arguments = (*call.arguments, 0, 0)
    if meaning.target == "none":
        return meaning.of_file, ""
    if meaning.target in ("path", "path_at"):
        path = process.path_at(arguments[0 if meaning.target == "path" else 1])
        return f"{meaning.of_file} {path[-_MAX_PATH:] or 'a file'}", path
    if meaning.target == "file":
        return _describe_file(process, meaning, arguments[0])
    count = min(arguments[1], _MAX_POLLED)
    fds = [fd for fd, _, _ in struct.iter_unpack("=ihh", process.memory(arguments[0], 8 * count)[: 8 * count])]
    if arguments[1] == 0:
        return "sleeping", ""
    if len(fds) != 1:
        return "waiting for events of files or sockets", ""
    return _describe_file(process, meaning, fds[0])


def _describe_file(process: Process, meaning: Meaning, fd: int) -> tuple[str, str]:
    target = process.link(f"fd/{fd}")
    kind, _, inode = target.partition(":[")
    if kind == "socket":
        found = find_socket(read_sockets(), inode.rstrip("]"))
        doing = meaning.of_socket or meaning.of_file
        if found is None:
            return f"{doing} a local socket", ""
        peer, state = found
        return f"{'connecting to' if state == SYN_SENT else doing} {peer}", ""
    if kind == "pipe":
        return f"{meaning.of_file} a pipe", ""
    if not target:
        return f"{meaning.of_file} a file or socket", ""
    if not target.startswith("/"):
        return f"{meaning.of_file} {target[:_MAX_PATH]}", ""
    return f"{meaning.of_file} {target[-_MAX_PATH:]}", "" if target.startswith("/dev/") else target


def look(pid: int, root: Path = Path("/proc"), pause: float = SAMPLE_SECONDS, thread: int | None = None) -> str:
    """`describe` a process now. This takes ``pause`` seconds, or longer if the kernel is slow.

    Args:
        thread: id of the thread in question; None: the main thread.
    """
    process = Process(pid, root)
    own = pid if thread is None else thread
    before = process.sample(own)
    time.sleep(pause)
    after = process.sample(own)
    text = describe(process, before, after)
    if text == MEANINGS["futex"].of_file:
        runs = [tid for tid in process.threads() if tid != own and process.runs(tid)]
        if runs:
            time.sleep(pause)
            runs = [tid for tid in runs if process.runs(tid)]
        if runs:
            name = process.text(f"task/{runs[0]}/comm").strip()
            text += f", while its thread {runs[0]}{f' ({name})' if name else ''} runs on a CPU"
    return text


class Look:
    """Runs `look` in a separate thread: reading ``/proc`` may wait for a process that is stuck in the kernel.

    Attributes:
        text: the result; None: not there yet.
        connections: TCP connections of the process.
    """

    def __init__(self, pid: int, now: float, thread: int | None = None) -> None:
        """``now``: monotonic seconds. ``thread``: see `look`."""
        self._pid, self._tid = pid, thread
        self._wait_until = now + LOOK_SECONDS
        self.connections = NO_CONNECTIONS
        self.text: str | None = None
        threading.Thread(target=self._run, name="otel-fr-look", daemon=True).start()

    def is_over(self, now: float) -> bool:
        """Return True once there is a result, or the time for it is over."""
        return self.text is not None or now >= self._wait_until

    def _run(self) -> None:
        text = ""
        with contextlib.suppress(Exception):  # whatever a kernel writes there must not end in a traceback
            self.connections = Process(self._pid).connections()
            text = look(self._pid, thread=self._tid)
        self.text = text
