"""A missing kernel is compiled for the next start, by a process that gives way to all others."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.support import engines, single_rank
from tests.support.waiting import until

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
