"""Runs programs of one process on torch's fake process group. Their environment says how otel-fr is active."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from tests.support import engines, warm
from tests.support.waiting import PATIENCE

PRELUDE = """\
import contextlib, json, os, signal, socket, sys, threading, time
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from otel_fr.capture import hook
import otel_fr.capture.session as session_module
from otel_fr.ring import RingReader

def no_monitor(path, is_first=True):
    raise OSError("none in this test")

def start():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)

def ring():
    return RingReader.open(hook._state.session._writer.path)

"""

PLAYED = """
def played(path, is_first=True):
    global theirs
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(20)
    return ours
session_module.start_monitor = played
start()
def hear():
    return json.loads(theirs.recv(1 << 20))
"""
"""Code that starts the rank; the program plays the monitor itself."""

ENGINE = "python"
"""The capture engine of these programs; the fixture ``each_engine`` sets it."""


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Return an environment in which rings and files go to ``folder``."""
    extra = {**engines.settings(ENGINE), **extra}
    own = {"OTEL_FR_RING_DIR": str(folder), "OTEL_FR_DUMP_DIR": str(folder / "dumps"), "HOME": str(folder)}
    return {**os.environ, "OMP_NUM_THREADS": "1", **own, **extra}


def write(folder: Path, body: str, name: str = "program.py") -> Path:
    program = folder / name
    program.write_text(PRELUDE + textwrap.dedent(body))
    return program


def _start(program: Path, env: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program)]
    return subprocess.run(
        command, env=env, cwd=program.parent, capture_output=True, text=True, timeout=seconds, check=False
    )


start: Callable[[Path, dict[str, str], float], subprocess.CompletedProcess[str]] = _start
"""Runs a program with an environment, for at most so many seconds. The fixture ``warm`` replaces this function."""


def run(folder: Path, body: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run ``body`` after `PRELUDE`. ``OTEL_FR_ENABLED`` is 1 unless ``extra`` has it."""
    program = write(folder, body)
    return start(program, environment(folder, **{"OTEL_FR_ENABLED": "1", **extra}), PATIENCE)


def succeed(folder: Path, body: str, **extra: str) -> str:
    """Like `run`, but the program must succeed. Returns its output without gloo's lines (torch 2.9)."""
    done = run(folder, body, **extra)
    assert done.returncode == 0, done.stderr[-4000:]
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("[Gloo]"))


def begin(program: Path, *arguments: str, stderr: int | None = None, **extra: str) -> subprocess.Popen[str]:
    """Start a program like `run`, with pipes to its input and output, and do not wait for it."""
    env = environment(program.parent, **{"OTEL_FR_ENABLED": "1", **extra})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
    return warm.rank([sys.executable, str(program), *arguments], env=env, cwd=program.parent, **pipes)


def rings(folder: Path) -> list[Path]:
    return sorted(folder.glob("otel-fr-*/*.ring"))
