"""`otel-fr kernel build` compiles the kernel. A rank without a kernel starts no compiler."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import engines, single_rank
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("warm")

COMMAND = Path(sys.executable).with_name("otel-fr")
PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
session_module.start_monitor = no_monitor
start()
dist.all_reduce(torch.ones(2))
print(len(list(ring().records())))
"""
NO_COMPILER = "no C++ compiler was found (CXX, c++, g++, clang++); install one, or set CXX to its path"


def _compiler(folder: Path, body: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\necho ran >> {folder}/runs\n{body}\n")
    path.chmod(0o700)
    return path


def _copies(folder: Path, kernel: Path) -> Path:
    """Make a fast "compiler", which copies the kernel."""
    return _compiler(folder, f'for last; do :; done\ncp {kernel} "$last"')


def _environment(folder: Path, compiler: Path | str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(folder / "cache"), "CXX": str(compiler)}


def _build(folder: Path, compiler: Path | str, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **_environment(folder, compiler), **extra}
    command = [str(COMMAND), "kernel", "build", *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


def _start(folder: Path, compiler: Path | str = "", **extra: str) -> str:
    env = {"OTEL_FR_CAPTURE_ENGINE": "auto", **_environment(folder, compiler), **extra}
    return single_rank.succeed(folder, PROGRAM, **env)


def test_a_rank_without_a_kernel_starts_no_compiler_and_names_the_command(tmp_path: Path) -> None:
    kernel = engines.kernel()
    compiler = _copies(tmp_path, kernel)
    first = _start(tmp_path, compiler)
    (line,) = (line for line in first.splitlines() if "engine records" in line)
    assert line.startswith("WARNING otel-fr: the python engine records this rank (there is no compiled kernel for ")
    assert line.endswith("none was compiled on this machine; to compile one: otel-fr kernel build)")
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache" / "otel-fr" / "kernels").exists()
    done = _build(tmp_path, compiler)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert found == tmp_path / "cache" / "otel-fr" / "kernels" / kernel.name
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    second = _start(tmp_path, compiler)
    assert "INFO otel-fr: the compiled engine records this rank" in second
    assert first.splitlines()[-1] == second.splitlines()[-1] == "1"


def test_only_the_first_rank_of_a_node_warns(tmp_path: Path) -> None:
    if not engines.HAS_RING_WRITER:
        engines.kernel()  # skips the test if there is none
    assert "INFO otel-fr: the python engine records this rank" in _start(tmp_path, LOCAL_RANK="1")


def test_a_kernel_that_is_there_is_not_compiled_again(tmp_path: Path) -> None:
    compiler = _copies(tmp_path, engines.kernel())
    first, second = _build(tmp_path, compiler), _build(tmp_path, compiler)
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout
    assert (tmp_path / "runs").read_text() == "ran\n"
    kernel = Path(first.stdout.strip())
    kernel.write_bytes(kernel.read_bytes()[:5000])
    assert _build(tmp_path, compiler).returncode == 0
    assert (tmp_path / "runs").read_text() == "ran\n" * 2, "it was damaged"


def test_the_folder_of_a_wheel_gets_the_same_kernel(tmp_path: Path) -> None:
    kernel = engines.kernel()
    done = _build(tmp_path, _copies(tmp_path, kernel), "--folder", str(tmp_path / "new" / "kernels"))
    assert done.stdout.strip() == str(tmp_path / "new" / "kernels" / kernel.name)


@pytest.mark.parametrize(
    ("compiler", "options", "env", "said"),
    [
        ("", [], {"PATH": "/nowhere"}, NO_COMPILER),
        ("", ["--torch", "/dev"], {}, "/dev has no torch"),
        ("", ["--wheel", "/dev/null"], {}, "/dev/null cannot be unpacked"),
        (
            "",
            [],
            {"XDG_CACHE_HOME": "/dev/null"},
            "/dev/null/otel-fr/kernels cannot be created (Not a directory): set ",
        ),
        ("fails", [], {}, "(it must support C++20; CXX names another): no such header"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, compiler: str, options: list[str], env: dict[str, str], said: str
) -> None:
    own = _compiler(tmp_path, "echo no such header >&2\nexit 1") if compiler else ""
    done = _build(tmp_path, own, *options, **env)
    assert done.returncode == 1
    assert done.stderr.startswith("otel-fr kernel build: no kernel was compiled: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.so"))
