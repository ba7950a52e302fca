"""The monitors of one run on one machine agree which of them logs a message and which ends last. They also see each
other's ranks.

They share a folder beside the rings. It is on this machine and private to the user, even if the job's own folders are
not. Each monitor locks a file there while it lives, so that a killed monitor does not count. For each message that must
be logged once, there is a file that only one of them can create.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.ring import pid_namespace, process_start_ns, process_state

JOIN_SECONDS = 1.0
"""How long the apparently last monitor waits for monitors of ranks that have just started."""
KEEP_SECONDS = 3_600.0
"""Age after which a folder is removed if its monitors were killed."""
MAX_MEMBERS = 256
"""Most ranks of one machine that are examined. Machines have a few dozen at most."""
MAX_READ = 4_096
"""Most bytes read of a file. It contains little more than a path."""

_PREFIX = "run-"
_MEMBER = "rank-"
_SAID = "said-"
_FAILED = "failed-"
_EARLIER = "earlier-"
_NOT_RUNNING = "TZX"
"""States of a process (proc_pid_stat(5)) that cannot report: stopped, a zombie, dead. A process that a debugger has
stopped counts as running, because it continues after the debugger's look."""


def run_folder(base: Path, run_id: str) -> Path:
    """Return the folder that the monitors of a run share. ``base``: the folder of the rings."""
    return base / f"{_PREFIX}{short_name(run_id)}"


def has_members(folder: Path) -> bool:
    """Return True from the first `Node.join` in a run's folder until `Node.remove`."""
    return any(folder.glob(f"{_MEMBER}*"))


def short_name(text: str) -> str:
    """Return a file name for any text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


class Node:
    """One monitor among the monitors of its run on this machine. No method raises `OSError`: each monitor is alone if
    there can be no folder.

    Args:
        base: the folder of the rings.
        size: number of the run's ranks on this machine; 0: unknown.
        pid: process id of the rank; 0: the others cannot look at it.
    """

    def __init__(self, base: Path, run_id: str, rank: int, size: int = 0, pid: int = 0) -> None:
        self.run_id = run_id
        self._folder = run_folder(base, run_id)
        self._rank, self._size, self._pid = rank, size, pid
        self._processes: dict[str, tuple[int, int, int]] = {}
        self._own: int | None = None
        self._said: dict[str, Path] = {}

    def join(self) -> None:
        """Become a member of the run's monitors, until `leave` or the end of this process."""
        _remove_old(self._folder.parent, self._folder)
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            own = os.open(self._folder / f"{_MEMBER}{self._rank}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._own = own
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(own, 0)
            started = process_start_ns(self._pid) or 0 if self._pid else 0
            os.write(own, f"{os.getpid()} {pid_namespace()} {self._pid} {started}".encode())

    def note_earlier(self, runs: Iterable[RankIdentity], own: RankIdentity) -> None:
        """Note the earlier runs of the rank's process. The present run ``own`` may lack ranks of these runs.

        Earlier runs with more ranks are not noted, because the present run is meant to work with fewer.
        """
        with contextlib.suppress(OSError):
            for one in runs:
                if one.session < own.session and one.world_size <= own.world_size:
                    (self._folder / f"{_EARLIER}{short_name(one.run_id)}").write_text(f"{own.world_size} {self.run_id}")

    def next(self) -> tuple[Node, int] | None:
        """Return this monitor's node in the newest run that other ranks here have entered since, and the number of that
        run's ranks. None: there is no such run, it lacks no rank, or it has ended well.

        The node has a negative number instead of a rank, because this rank's number in that run is unknown. It has not
        joined, so that no other monitor waits for it.
        """
        with contextlib.suppress(OSError, ValueError):
            found = self._folder.parent.glob(f"{_PREFIX}*/{_EARLIER}{short_name(self.run_id)}")
            newest = max(found, key=lambda path: len([*path.parent.glob(f"{_EARLIER}*")]))
            world_size, _, run_id = _read(newest).partition(" ")
            node = Node(self._folder.parent, run_id, -1 - self._rank, self._size, self._pid)
            size = int(world_size)
            if 0 < len(node._members()) < min(size, self._size or size):  # the other ranks are on other machines
                return node, size
        return None

    def is_first(self, what: str, every: float = 0.0) -> bool:
        """Return True for the first monitor that passes this text, and for all if the monitors cannot agree.

        Args:
            every: seconds after which a monitor can be the first again; 0: never.
        """
        period = int(time.time() / every) if every else 0
        path = self._folder / f"{_SAID}{short_name(f'{what} {period}')}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True
        if every:
            before, self._said[what] = self._said.get(what), path
            if before is not None:  # else a job of weeks would have a file for each minute
                before.unlink(missing_ok=True)
        return True

    def others(self) -> list[int]:
        """Return the process ids of the other living monitors, except in other containers, whose ids are not valid
        here."""
        found, space = [], pid_namespace()
        for path in self._members():
            if space and not is_free(path):
                with contextlib.suppress(OSError, ValueError):
                    pid, theirs, *_ = _read(path).split()
                    found += [int(pid)] if theirs == space else []
        return found

    def running(self) -> list[int]:
        """Return this machine's ranks of the run whose processes exist and are not stopped, in ascending order.

        The states of their monitors do not matter. Ranks in other containers cannot be seen. This takes some 20
        microseconds for each rank.
        """
        found: list[int] = []
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(self._folder) if name.startswith(_MEMBER))
            found = [rank for rank in map(self._if_running, names[:MAX_MEMBERS]) if rank is not None]
        return sorted(found)

    def _if_running(self, name: str) -> int | None:
        """Return the rank of a member's file. None: its process does not run, or is unknown."""
        with contextlib.suppress(OSError, ValueError):
            if name not in self._processes:
                _, theirs, pid, started = _read(self._folder / name).split()
                if theirs != pid_namespace() or not int(pid):
                    return None
                self._processes[name] = int(name.removeprefix(_MEMBER)), int(pid), int(started)
            rank, known_pid, start_ns = self._processes[name]
            now = process_state(known_pid)
            if now is not None and now.started_ns == start_ns and now.letter not in _NOT_RUNNING:
                return rank
        return None

    def note_failure(self, file: str, *, stopped: bool) -> None:
        """Note that this rank has failed. ``file``: its flight-recorder file, or "". ``stopped``: something outside
        ended the rank, such as the launcher."""
        with contextlib.suppress(OSError):
            (self._folder / f"{_FAILED}{self._rank}").write_text(f"{int(stopped)}{file}")

    def failures(self) -> dict[int, tuple[str, bool]]:
        """Return rank -> (file, stopped) for each failed rank here; see `note_failure`."""
        found: dict[int, tuple[str, bool]] = {}
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{_FAILED}*"):
                with contextlib.suppress(OSError, ValueError):
                    text = _read(path)
                    found[int(path.name.removeprefix(_FAILED))] = text[1:], text[:1] == "1"
        return found

    def fall_silent(self) -> bool:
        """Give up reporting the run's end. Return True if no other monitor here can report it, so that this one must.

        Blocks for at most `JOIN_SECONDS`, and only if a rank has failed and ranks of this machine have no monitor yet.
        """
        if self.failures():
            self._wait_for_others()
        with self._door():
            if self._own is not None:
                os.ftruncate(self._own, 0)
            return all(is_free(path) or not _read(path) for path in self._members())

    def leave(self, *, patient: bool = True) -> bool:
        """Stop being a member. Return True for the last monitor of the run here.

        Blocks for at most `JOIN_SECONDS`, and only if ``patient`` and ranks of this machine have no monitor yet.
        """
        if patient:
            self._wait_for_others()
        with self._door():
            if self._own is not None:
                os.close(self._own)
                self._own = None
            return all(is_free(path) for path in self._members())

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        while self._own is not None and not self.is_complete and time.monotonic() < deadline:
            time.sleep(0.02)

    def remove(self) -> None:
        """Remove the folder, because the run has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _members(self) -> list[Path]:
        own = f"{_MEMBER}{self._rank}"
        with contextlib.suppress(OSError):
            return [path for path in self._folder.glob(f"{_MEMBER}*") if path.name != own]
        return []

    @property
    def is_complete(self) -> bool:
        """True if all monitors of the run here have joined. They may have left again."""
        return len(self._members()) + 1 >= self._size

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        """Admit one monitor at a time, so that if two leave together, only one of them is the last."""
        try:
            door = os.open(self._folder / "door", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(door, fcntl.LOCK_EX)
            yield
        finally:
            os.close(door)


def is_free(path: Path) -> bool:
    """Return True if no living monitor has locked this file, or it cannot be opened."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _read(path: Path) -> str:
    with path.open(errors="surrogateescape") as file:
        return file.read(MAX_READ)


def _remove_old(base: Path, but: Path) -> None:
    """Remove the folders of runs that ended long ago, except the folder ``but``."""
    with contextlib.suppress(OSError):
        for folder in base.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                is_old = time.time() - folder.stat().st_mtime > KEEP_SECONDS
                if folder != but and is_old and all(is_free(path) for path in folder.glob(f"{_MEMBER}*")):
                    shutil.rmtree(folder, ignore_errors=True)
