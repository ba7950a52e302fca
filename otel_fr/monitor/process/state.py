"""What the kernel says of a process that does not continue: stopped, or in which system call and for which file or
socket.

All of it is read from ``/proc``; a file that may not be read is left out. With the Yama security module's
``ptrace_scope`` of 1 or more, system calls may be read by privileged users only, and the kernel function in which the
thread waits (``wchan``) is what remains.
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
"""Between two looks at a thread; one that has not run in between has waited since the first."""
LOOK_SECONDS: Final = 1.0
"""How long the stacks are held back for the result."""
MAX_TEXT: Final = 400
"""Characters of the result."""
MAX_THREADS: Final = 512
"""Threads that are looked at for one that runs while the main thread waits."""
_MAX_PATH: Final = 200
_MAX_FILE: Final = 8 << 20
"""Bytes read of a file."""
_MAX_FILES: Final = 16_384
"""Open files among which a process's sockets are looked for."""
_MAX_POLLED: Final = 16
_SOCKET: Final = "socket:["
_FREEZER: Final = ("freezer", "refrigerator", "get_signal")
"""In the name of the function in which a frozen process waits. Linux 6.18 inlines ``do_freezer_trap`` in the last."""
_STOPPED: Final = {"T": "stopped by a signal", "Z": "a zombie: its parent has not waited for it", "X": "dead"}
_REMOTE: Final = ("nfs", "fuse", "lustre", "ceph", "cifs", "smb", "9p", "gpfs", "beegfs", "gluster", "afs")
"""Types of file systems, or their beginnings, whose server the text names."""
_SLOW: Final = ("nfs", "rpc_", "fuse", "ceph", "cifs", "smb2", "ptlrpc", "p9_", "folio_wait", "io_schedule")
"""Parts of the kernel's functions in which a thread waits for a file system or its disk."""


class SystemCall(NamedTuple):
    """``number`` is -1 in the kernel but in no system call, as after a page fault."""

    number: int
    arguments: tuple[int, ...] = ()


class Sample(NamedTuple):
    """One look at one thread.

    Attributes:
        state: the letter in ``/proc/PID/stat``; "": not known. wchan: the kernel function it waits in; "": not known.
        call: None: it runs, or that may not be read. switches: how often it has left a CPU; None: not known.
        ran: nanoseconds on a CPU, as text; "": not known.
    """

    state: str = ""
    wchan: str = ""
    call: SystemCall | None = None
    switches: int | None = None
    ran: str = ""


def parse_call(text: str) -> SystemCall | None:
    """From ``/proc/PID/syscall``; None of a thread that runs."""
    parts = text.split()
    try:
        number = int(parts[0])
        return SystemCall(number, tuple(int(part, 16) for part in parts[1:7]) if number >= 0 else ())
    except (ValueError, IndexError):
        return None


def parse_status(text: str) -> dict[str, str]:
    """From ``/proc/PID/status``: name -> value."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    """Type and source of the file system that holds a path (``/proc/PID/mountinfo``); "" if not known."""
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
    """Reads of one process what ``/proc`` has. ``root``: in place of ``/proc``."""

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self.pid = pid
        self._root = root
        self._folder = root / str(pid)

    def text(self, name: str) -> str:
        """The text of a file; "" if it cannot be read."""
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(_MAX_FILE).decode("utf-8", "replace")
        except OSError:
            return ""

    def waits_in(self, thread: str = "") -> str:
        """The kernel function that a thread waits in, without the compiler's suffix (``.constprop.0``); "": in none.

        Args:
            thread: its folder, with a slash; the main thread's if it is empty.
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
        """The ids of its threads but the main thread."""
        with contextlib.suppress(OSError):
            ids = sorted(int(name) for name in os.listdir(self._folder / "task") if name.isdigit())
            yield from [tid for tid in ids if tid != self.pid][:MAX_THREADS]

    def runs(self, tid: int) -> bool:
        """True if a thread runs or waits for a CPU."""
        return self.text(f"task/{tid}/stat").rpartition(")")[2].split()[:1] == ["R"]

    def catches(self, number: int) -> bool:
        """True if it has a handler of a signal; False also where that is not known."""
        try:
            return bool(int(parse_status(self.text("status"))["SigCgt"], 16) >> number - 1 & 1)
        except (KeyError, ValueError):
            return False

    def is_read_here(self) -> bool:
        """True if what traces it was started by this process: py-spy, which stops it for as long as it reads."""
        tracer = parse_status(self.text("status")).get("TracerPid", "0")
        if not tracer.isdigit() or tracer == "0":
            return False
        return parse_status(Process(int(tracer), self._root).text("status")).get("PPid") == str(os.getpid())

    def name_of(self, pid: str) -> str:
        """The command of another process; "" if it is not known."""
        try:
            return (self._root / pid / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""

    def memory(self, address: int, size: int) -> bytes:
        """Bytes of its memory; fewer at the end of a mapping, none if it may not be read."""
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
        """The path that an argument points to, from its working directory; "" if it is not known."""
        page = 4096
        raw = self.memory(address, page - address % page)  # up to the end of the page: the next may not be mapped
        if b"\0" not in raw:
            raw += self.memory(address + len(raw), page)
        path = raw.partition(b"\0")[0].decode("utf-8", "replace")
        return os.path.join(self.link("cwd"), path) if path and b"\0" in raw else ""

    def link(self, name: str) -> str:
        """Where a symbolic link points; "" if that is not known. What it points to is not touched."""
        try:
            return os.fsencode(os.readlink(self._folder / name)).decode("utf-8", "replace")
        except OSError:
            return ""

    def socket_inodes(self) -> set[str]:
        """Of its open files, those that are sockets."""
        files: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self._folder / "fd") as entries:
            files = [self.link(f"fd/{entry.name}") for entry in islice(entries, _MAX_FILES)]
        return {target[len(_SOCKET) : -1] for target in files if target.startswith(_SOCKET)}

    def connections(self) -> Connections:
        """Its TCP connections as they are now."""
        inodes = self.socket_inodes()
        return connections_of(read_sockets(), inodes) if inodes else NO_CONNECTIONS


def describe(process: Process, before: Sample, after: Sample) -> str:
    """What a process is doing, by two looks at one of its threads: ``"reading /data/x.bin (pipe_read)"``.

    Returns:
        text that follows "it is"; "" if nothing is known.
    """
    if after.state in ("T", "t"):
        return _describe_stop(process, after.state)
    if after.state in _STOPPED:
        return _STOPPED[after.state]
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
        return ""  # it runs again, or will at once
    tracer = status.get("TracerPid", "0")
    if tracer.isdigit() and int(tracer):
        name = process.name_of(tracer)
        return f"stopped by a debugger (process {tracer}{f', {name}' if name else ''})"
    # Without a terminal nothing sends SIGTSTP, SIGTTIN or SIGTTOU of its own accord.
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
    """What a thread in the call is doing, and the path of the file, if it is one."""
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
    """`describe` a process now; this takes ``pause`` seconds, or longer where the kernel is slow.

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
    """A `look` in a thread of its own: a read of ``/proc`` may wait for a process that is stuck in the kernel.

    Attributes:
        text: what was found; None: not known yet. connections: of the process.
    """

    def __init__(self, pid: int, now: float, thread: int | None = None) -> None:
        """``now``: monotonic seconds. ``thread``: as in `look`."""
        self._pid, self._tid = pid, thread
        self._wait_until = now + LOOK_SECONDS
        self.connections = NO_CONNECTIONS
        self.text: str | None = None
        threading.Thread(target=self._run, name="otel-fr-look", daemon=True).start()

    def is_over(self, now: float) -> bool:
        """True once there is a result, or there need be none any more."""
        return self.text is not None or now >= self._wait_until

    def _run(self) -> None:
        text = ""
        with contextlib.suppress(Exception):  # whatever a kernel writes there must not end in a traceback
            self.connections = Process(self._pid).connections()
            text = look(self._pid, thread=self._tid)
        self.text = text
