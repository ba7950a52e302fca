"""Starts the rank's monitor: a process that is not a child of the rank, and outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_fr.helper_process import helper_environment, python_command

_SHELL: Final = "/bin/sh"
_ABOVE: Final = 10
_DEFAULT_SIGNALS: Final = (signal.SIGCHLD,)
"""Signals that the job may ignore, but the monitor must not: its libraries wait for the processes that they start."""
_DETACH: Final = 'exec 0</dev/null; "$0" "$@" &'


def start_monitor(ring: Path, *, is_first: bool = True) -> socket.socket:
    """Start the monitor of a ring file. Return the rank's end of the connection to it.

    The training process is not forked (``posix_spawn``). The monitor's parent is a shell that has ended when this
    returns, so the rank has no child process that its own code could wait for. The monitor has its own session, so a
    signal to the rank's process group does not reach it.

    Args:
        is_first: False if the monitor replaces one that was killed.

    Raises:
        OSError: the process cannot be started.
    """
    if not sys.executable:
        raise OSError("sys.executable is empty: the path of this interpreter is not known")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process: int | None = None
    try:
        command = python_command("otel_fr.monitor", '4 if "--pidfd" in sys.argv else 3')
        arguments = [*command, "--ring", str(ring), "--fd", "3", *([] if is_first else ["--again"])]
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
            (os.POSIX_SPAWN_DUP2, 2, 1),
        ]
        process = _own_pidfd()
        if process is not None:
            arguments += ["--pidfd", "4"]
            actions.append((os.POSIX_SPAWN_DUP2, process, 4))
        start_detached(arguments, helper_environment(os.environ), actions)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if process is not None:
            os.close(process)
    return ours


def start_detached(arguments: Sequence[str], env: Mapping[str, str], actions: Sequence[tuple[Any, ...]]) -> None:
    """Start a process whose parent has ended when this returns; see `start_monitor`.

    Args:
        actions: actions on the new process's file descriptors, as ``posix_spawn`` takes them.

    Raises:
        OSError: the process cannot be started.
    """
    command = [_SHELL, "-c", _DETACH, *arguments]
    try:
        pid = os.posix_spawn(
            _SHELL, command, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULT_SIGNALS
        )
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID
        pid = os.posix_spawn(
            _SHELL, command, env, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=_DEFAULT_SIGNALS
        )
    # A job that ignores SIGCHLD, or whose handler waits for every child, leaves nothing to wait for: waitpid(2).
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _own_pidfd() -> int | None:
    """Return a descriptor of this process, so that the monitor notices the rank's end even if it comes first.

    The descriptor's number is above those that the child uses, so moving one descriptor cannot overwrite another.
    """
    try:
        low = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return None
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    except OSError:
        return None
    finally:
        os.close(low)
