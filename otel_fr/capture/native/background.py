"""Has a missing kernel compiled for the next start, by a process that gives way to all others."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from otel_fr.capture.launch import start_detached
from otel_fr.capture.native import build, store
from otel_fr.helper_process import helper_environment, python_command


def obstacle(torch: ModuleType) -> str:
    """Why the kernel for the running torch would not be compiled if a rank started now, for people; "": it would."""
    if not sys.executable:
        return "the path of this interpreter is not known"
    if build.find_compiler() is None:
        return build.NO_COMPILER
    try:
        folder = store.cache_folder()
        store.check_writable(folder)
    except OSError as error:
        return str(error)
    failed = store.failure(folder / build.Target.running(torch).file_name)
    if failed is None:
        return ""
    reason = failed.splitlines()[0] if failed else "no reason is known"
    return f"it could not be compiled, and is tried again a week after that: {reason}"


def start(torch: ModuleType) -> str:
    """Start to compile the kernel for the running torch, unless that cannot be. Never waits.

    The process that it starts ends at once if another one compiles.

    Returns:
        what is done about it, for people.
    """
    reason = obstacle(torch)
    if reason:
        return reason
    root = build.Target.running(torch).root
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    command = [*python_command("otel_fr.capture.native.build"), "--background", "--torch", str(root)]
    start_detached(command, helper_environment(os.environ), null)
    return "it is compiled in the background, for the next start"
