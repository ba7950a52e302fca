"""A missing kernel is compiled for the next start, by a process that gives way to all others."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.capture.native import build
from tests.support import engines, single_rank
from tests.support.waiting import PATIENCE, until

PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
session_module.start_monitor = no_monitor
start()
dist.all_reduce(torch.ones(2))
print(len(list(ring().records())))
"""


def _compiler(folder: Path, body: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


def _start(folder: Path, compiler: Path) -> str:
    extra = {"XDG_CACHE_HOME": str(folder / "cache"), "CXX": str(compiler)}
    return single_rank.succeed(folder, PROGRAM, OTEL_FR_CAPTURE_ENGINE="auto", **extra)


def test_a_missing_kernel_is_compiled_for_the_next_start(tmp_path: Path) -> None:
    kernel = engines.kernel()
    seen = tmp_path / "nice"
    copy = f'for last; do :; done\n(nice; cat /proc/self/oom_score_adj) > {seen}\ncp {kernel} "$last"'
    compiler = _compiler(tmp_path, copy)
    first = _start(tmp_path, compiler)
    assert "the python engine records this rank" in first
    assert "compiled in the background" in first
    found = tmp_path / "cache" / "otel-fr" / "kernels" / kernel.name
    until(found.is_file)
    second = _start(tmp_path, compiler)
    assert "the compiled engine records this rank" in second
    assert first.splitlines()[-1] == second.splitlines()[-1] == "1"
    assert seen.read_text().split() == ["19", "1000"]
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_a_failure_is_remembered(tmp_path: Path) -> None:
    if not engines.HAS_RING_WRITER:
        engines.kernel()  # skips
    compiler = _compiler(tmp_path, f"echo tried >> {tmp_path}/tries\necho no such header >&2\nexit 1")
    assert "compiled in the background" in _start(tmp_path, compiler)
    folder = tmp_path / "cache" / "otel-fr" / "kernels"
    until(lambda: any(folder.glob("*.failed")))
    assert "no such header" in _start(tmp_path, compiler)
    assert (tmp_path / "tries").read_text() == "tried\n"
    assert not list(folder.glob("*.so"))


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    kernel = engines.kernel()
    folder = tmp_path / "cache" / "otel-fr" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    (folder / kernel.name).write_bytes(kernel.read_bytes())
    (folder / kernel.name).chmod(0o722)
    compiler = _compiler(tmp_path, "exit 1")
    assert "the python engine" in _start(tmp_path, compiler)
    (folder / kernel.name).chmod(0o700)
    folder.chmod(0o770)
    assert "the python engine" in _start(tmp_path, compiler)
    folder.chmod(0o700)
    assert "the compiled engine" in _start(tmp_path, compiler)


def test_a_damaged_kernel_ends_no_rank(tmp_path: Path) -> None:
    kernel = engines.kernel()
    folder = tmp_path / "cache" / "otel-fr" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    (folder / kernel.name).write_bytes(kernel.read_bytes()[:5000])
    (folder / kernel.name).chmod(0o700)
    assert "the python engine" in _start(tmp_path, _compiler(tmp_path, "exit 1"))


def _hanging(folder: Path) -> Path:
    """A compiler that does not end, nor does the process that it starts, as those of GCC do."""
    return _compiler(folder, f"sleep 3600 &\necho $PPID $$ $! >> {folder}/processes\nwait")


def _processes(folder: Path) -> list[int]:
    """The processes of each hanging compiler: what started it, itself, its child."""
    path = folder / "processes"
    until(lambda: path.is_file() and path.read_text().endswith("\n"))
    return [int(word) for word in path.read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_compiler_that_hangs_holds_up_neither_the_job_nor_its_exit(tmp_path: Path) -> None:
    """Two jobs in one fresh cache: only one of them has it compiled."""
    engines.kernel()
    compiler = _hanging(tmp_path)
    # Their ends include that of every process that holds their output.
    for _ in range(2):
        assert "compiled in the background" in _start(tmp_path, compiler)
        builder, *others = _processes(tmp_path)
    try:
        assert all(map(_is_alive, (builder, *others)))
        assert len(others) == 2
    finally:
        os.kill(builder, signal.SIGKILL)
        os.killpg(others[0], signal.SIGKILL)
    # What it left is removed by the next one.
    folder = tmp_path / "cache" / "otel-fr" / "kernels"
    assert len(list(folder.glob(".building-*"))) == 1
    assert "compiled in the background" in _start(tmp_path, _compiler(tmp_path, "echo no >&2; exit 1"))
    until(lambda: any(folder.glob("*.failed")))
    until(lambda: not list(folder.glob(".building-*")))


def test_of_a_compiler_that_hangs_nothing_is_left_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TIMEOUT", 0.5)
    monkeypatch.setenv("CXX", str(_hanging(tmp_path)))
    with pytest.raises(build.BuildError, match="did not end within"):
        build.build(build.Target.installed(), tmp_path)
    _, *own = _processes(tmp_path)
    until(lambda: not any(map(_is_alive, own)))
    assert not list(tmp_path.glob(".building-*"))


def test_many_jobs_compile_it_once_in_a_fresh_cache(tmp_path: Path) -> None:
    kernel = engines.kernel()
    slow = f'echo tried >> {tmp_path}/tries\nsleep 2\nfor last; do :; done\ncp {kernel} "$last"'
    compiler = _compiler(tmp_path, slow)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(compiler)}
    command = [sys.executable, "-m", "otel_fr.capture.native.build"]
    jobs = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [job.wait(PATIENCE) for job in jobs] == [0] * 4
    assert (tmp_path / "tries").read_text() == "tried\n"
    assert "the compiled engine" in _start(tmp_path, compiler)
