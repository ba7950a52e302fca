"""The command, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "dump"))

from rings import RankRing, signature

FIXTURES = Path(__file__).parent.parent / "fixtures" / "dumps"


def otel_fr(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "otel_fr.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


@pytest.mark.parametrize(
    ("folder", "status"), [("fr01_matched_allreduce_and_singletons", 0), ("tc01_torchcomms_json_hang", 1)]
)
def test_the_exit_status_tells_health_from_fault(folder: str, status: int) -> None:
    text = otel_fr("analyze", FIXTURES / folder)
    told = otel_fr("analyze", FIXTURES / folder, "--format", "json")
    assert (text.returncode, told.returncode) == (status, status)
    assert text.stderr == told.stderr == ""
    assert len(json.loads(told.stdout)["incidents"]) == status


def test_unusable_input_is_told_apart_and_explained(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(b"")
    for path in (tmp_path, tmp_path / "trace_0", tmp_path / "none"):
        done = otel_fr("analyze", path, "--format", "json" if path.is_dir() else "text")
        assert done.returncode == 2
        assert str(path) in done.stderr
    assert "empty" in otel_fr("analyze", tmp_path).stdout


def test_wrong_use_is_explained() -> None:
    assert otel_fr().returncode == 2
    assert otel_fr("analyse").returncode == 2
    assert "analyze" in otel_fr("--help").stdout


def test_the_version_is_printed() -> None:
    done = otel_fr("version")
    assert (done.returncode, done.stdout.startswith("otel-fr ")) == (0, True)


def test_analyze_imports_neither_torch_nor_the_collector() -> None:
    code = (
        "import sys; from otel_fr.cli import main; main(['analyze', sys.argv[1]]);"
        " sys.exit(any(name in sys.modules for name in ('torch', 'otel_fr_collector', 'grpc', 'opentelemetry')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(FIXTURES / "tc01_torchcomms_json_hang")], capture_output=True
    )
    assert done.returncode == 0, done.stderr


def waiting_process(*words: str) -> subprocess.Popen[bytes]:
    """A process that ends with status 7 when it gets SIGUSR1; it is ready when this returns."""
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1});"
        " print(flush=True); signal.sigwait({signal.SIGUSR1}); sys.exit(7)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_dump_asks_the_monitors_of_this_users_ranks_and_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / f"otel-fr-{os.getuid()}"
    monitor, stranger = waiting_process("otel_fr.monitor"), waiting_process("something-else")
    try:
        with_monitor, reused = RankRing(tmp_path, 0, 2), RankRing(tmp_path, 1, 2)
        assert with_monitor.writer.path.parent == folder
        with_monitor.call(signature("barrier", ()))
        with_monitor.writer.set_monitor_pid(monitor.pid)
        reused.writer.set_monitor_pid(stranger.pid)
        (folder / "torn").write_bytes(b"no ring")
        env = {"OTEL_FR_RING_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}

        other = otel_fr("dump", "--pid", 1, **env)
        assert other.returncode == 1
        assert monitor.poll() is None

        done = otel_fr("dump", "--pid", os.getpid(), **env)
        assert done.returncode == 0, done.stderr
        assert f"rank 0 (process {os.getpid()}): asked its monitor (process {monitor.pid})" in done.stdout
        assert "rank 1" in done.stderr
        assert "torn" in done.stderr
        assert monitor.wait(20) == 7
        assert stranger.poll() is None
    finally:
        for process in (monitor, stranger):
            process.send_signal(signal.SIGKILL)
            process.wait()
