"""Small file systems that fill up soon, become read-only, or never answer."""

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
    """Make ``folder`` and mount a tmpfs there. Skips the test if this is not possible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Disk:
    """An ext4 file system on a file.

    Attributes:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(32 << 20)
        self._mount(["mkfs.ext4", "-q", "-F", str(self._image)])
        self.mount()

    def mount(self) -> None:
        self._mount(["mount", "-o", "loop", str(self._image), str(self.folder)])

    def _mount(self, command: list[str]) -> None:
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot mount a disk of our own here: {getattr(error, 'stderr', '') or error}")

    def fail(self) -> None:
        """Fail as after a device error: the file system becomes read-only, and data that was not synced is lost."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.folder)], capture_output=True, check=False)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[Path]:
    """Make ``folder`` and mount a file system there that never answers. Skips the test if this is not possible."""
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
