"""Small file systems that are full soon, may not be written, or never answer."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs at ``folder``, which is made; the test is skipped where it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[Path]:
    """A file system at ``folder``, which is made, that never answers; the test is skipped where none can be mounted."""
    folder.mkdir()
    script = Path(__file__).parent / "scripts" / "silent_mount.py"
    command = [sys.executable, str(script), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline().strip()
        if said != "mounted":
            pytest.skip(f"cannot mount a file system of our own here: {said}")
        yield folder
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()
